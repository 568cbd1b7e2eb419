"""Scripted answers: the rows of a JSONL file, each with a prompt and a gold answer."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from rollout_kit.errors import ConfigError, TaskError
from rollout_kit.responses import Item, output_text
from rollout_kit.serving.registry import resolve_path
from rollout_kit.types import JsonObject

from .asked import RESPONSES, Asked, read
from .draws import Draws


@dataclass(frozen=True, slots=True)
class Turn:
    """The text of a turn and its calls as (name, arguments)."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Scripted:
    """One row. `graded` is the part that its verifier checks; answers to rows with the same
    `graded` count as equal."""

    turns: tuple[Turn, ...]
    graded: Any


class Script:
    def __init__(self, rows: dict[str, Scripted], source: str) -> None:
        self._rows = rows
        self._all = list(rows.values())
        self._source = source

    @classmethod
    def read(cls, path: str, template: str) -> "Script":
        """Read a script; ConfigError names an invalid line."""
        found = resolve_path(path)
        if found is None or not found.is_file():
            raise ConfigError(f"script_jsonl_fpath {path}: no such file")
        rows: dict[str, Scripted] = {}
        with found.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    question, scripted = _row(line, template, f"{path}:{number}")
                    known = rows.setdefault(question, scripted)
                    if known.graded != scripted.graded:
                        raise ConfigError(
                            f"{path}:{number}: another answer to a prompt that came before; "
                            "a script tells prompts apart by the texts of the user alone"
                        )
        if not rows:
            raise ConfigError(f"script_jsonl_fpath {path}: has no rows")
        return cls(rows, path)

    def turn(self, asked: Asked, accuracy: float, draws: Draws) -> Turn:
        """The row's turn, or the last turn of another row if the draw demands a wrong answer.

        Only a first turn can be wrong; after correct tool calls, the rest follows the script.
        """
        row = self._rows.get(asked.question)
        if row is None:
            raise TaskError(
                f"{self._source} has no row with this prompt: {asked.question!r:.200}; is it the "
                "file that is run, and does no prompt_config change the prompts?",
                status=400,
            )
        if asked.num_turns == 0 and draws.uniform() >= accuracy:
            return self._wrong(row, draws)
        if asked.num_turns < len(row.turns):
            return row.turns[asked.num_turns]
        return Turn(row.turns[-1].text)  # its calls were made already

    def _wrong(self, row: Scripted, draws: Draws) -> Turn:
        start = draws.below(len(self._all))
        for offset in range(len(self._all)):
            other = self._all[(start + offset) % len(self._all)]
            if other.graded != row.graded and other.turns[-1].text:
                return other.turns[-1]
        return Turn("I do not know.")


def _row(line: bytes, template: str, place: str) -> tuple[str, Scripted]:
    try:
        row = orjson.loads(line)
        asked = read(RESPONSES, row["responses_create_params"])
        turns = _turns(row, template)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{place}: not JSON: {error}") from None
    except (KeyError, TypeError, AttributeError, TaskError) as error:
        raise ConfigError(f"{place}: not a task: {type(error).__name__}: {error}") from None
    if not turns:
        raise ConfigError(f"{place}: needs gold_output, gold_items or expected_answer")
    graded = row.get("expected_answer", [(turn.text, turn.calls) for turn in turns])
    return asked.question, Scripted(turns, graded)


def _turns(row: JsonObject, template: str) -> tuple[Turn, ...]:
    if row.get("gold_items"):
        return tuple(_played(row["gold_items"]))
    if row.get("gold_output") is not None:
        return (Turn(str(row["gold_output"])),)
    if row.get("expected_answer") is not None:
        return (Turn(template.replace("{answer}", str(row["expected_answer"]))),)
    return ()


def _played(items: list[Item]) -> Iterable[Turn]:
    """The turns of a trajectory; a turn ends before the outputs of its calls."""
    own: list[Item] = []
    for item in [*items, {"type": "function_call_output"}]:
        if item.get("type") != "function_call_output":
            own.append(item)
        elif own:
            calls = [item for item in own if item.get("type") == "function_call"]
            yield Turn(
                output_text({"output": own}),
                tuple((call["name"], call["arguments"]) for call in calls),
            )
            own = []
