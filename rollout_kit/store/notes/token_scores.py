"""Log-probs that other policies give the sampled tokens of rollouts, such as a reference or a later
version: `<stem>.d/token_scores.jsonl`. The last line of a rollout and a policy counts."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from ...errors import OutputError
from ...reading import parse_line, read_lines
from ...types import JsonObject, Key
from ..files import OutputPaths
from ..kinds import mark
from ..lines import dump_line, now_text

Scores = list[float] | None
"""The log-prob of each sampled token; None if they were not scored."""


def write_token_scores(output: Path, key: Key, policy: str, scores: Mapping[int, Scores]) -> None:
    """Append the scores of a rollout, by the number of the item in its output that has the token
    ids; OutputError if they cannot be written."""
    path = _path_of(output)
    line = {
        **mark("token_scores"),
        **key._asdict(),
        "policy": policy,
        "items": {f"{at}": each for at, each in scores.items()},
    }
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as stream:
            stream.write(dump_line({**line, "at": now_text()}))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None


def read_token_scores(output: Path, key: Key) -> JsonObject:
    """Policy → number of an item → its scores."""
    found: dict[str, Any] = {}
    own, wanted = key._asdict(), orjson.dumps(key.task_id)
    with suppress(OSError):
        for _, raw in read_lines(_path_of(output)):
            line = parse_line(raw) if wanted in raw else None
            if line is not None and own.items() <= line.items():
                found[str(line.get("policy"))] = line.get("items")
    return found


def _path_of(output: Path) -> Path:
    return OutputPaths(output).sidecar("token_scores.jsonl")
