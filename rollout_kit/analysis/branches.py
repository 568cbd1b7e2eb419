"""Rows whose rollouts begin with the first turns of stored ones, and are made again from there."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..config.overrides import key_of_word
from ..session import FIRST_TURNS
from ..store.filters.expression import Filter
from ..store.lines import row_of
from ..store.rollouts import RolloutFile
from ..store.steps import is_returned, read_steps
from ..trajectory import ModelCall, without_tokens
from ..types import JsonObject, Key, Rollout

REPLACED = ("input_jsonl_fpath", "output_jsonl_fpath", "dataset", "only", "limit")
"""Keys of a command that another input replaces."""


def make_branches(
    paths: Sequence[Path], turn: int, keeps: Filter | None, left_out: Counter[str]
) -> Iterator[JsonObject]:
    """A row for each rollout that a filter keeps. `turn` is the first one that is asked again,
    from 1. `left_out` gets the reasons for none → how many."""
    for path in paths:
        file = RolloutFile(path, skips_newer=True)
        for line in file.heads(parsed=True):
            rollout = file.join(line)
            if rollout is None or (keeps is not None and not keeps(rollout)):
                continue
            row = make_branch(rollout, turn)
            if isinstance(row, str):
                left_out[row] += 1
            else:
                yield row
        left_out.update(file.left_out)


def make_branch(rollout: Rollout, turn: int) -> JsonObject | str:
    """The row of a rollout with its turns before `turn`; the reason if there can be none."""
    steps = read_steps(rollout.line)
    if len(steps) < turn:
        return f"fewer than {turn} turns"
    if any(is_aside(step.call) for step in steps):
        return "turns of a simulated user, of another model or of a branch"
    output = rollout.response["output"]
    given = [
        [without_tokens(item) for item in output[step.begin : step.end] if not is_returned(item)]
        for step in steps[: turn - 1]
    ]
    row = {"agent_ref": {"name": rollout.key.agent}, **row_of(rollout.line)}
    return {**row, **({FIRST_TURNS: given} if given else {})}


def is_aside(call: ModelCall) -> bool:
    """Whether a call is none of the policy in the rollout's only chain."""
    return call.by not in (None, "policy") or bool(call.chain)


def branch_command(path: Path, command: str, key: Key, turn: int) -> str:
    """The commands that make a rollout again from a turn on."""
    target, again = f"from_turn_{turn}.jsonl", f"results/from_turn_{turn}.jsonl"
    where = f'task_id == "{key.task_id}" and rollout_index == {key.rollout_index}'
    file = f"+output_jsonl_fpath={target}"
    made = ["ng_branch", str(path), f"+turn={turn}", f"+where={where}", file]
    kept = [word for word in shlex.split(command) if key_of_word(word) not in REPLACED]
    files = [f"+input_jsonl_fpath={target}", f"+output_jsonl_fpath={again}"]
    return f"{shlex.join(made)}\n{shlex.join([*kept, *files])}"
