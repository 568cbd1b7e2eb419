"""ng_branch: make tasks that begin in the middle of stored rollouts."""

from collections import Counter

import orjson

from ..analysis.branches import make_branches
from ..config.keys import BranchConfig
from ..errors import ConfigError, number_of
from ..store.files import write_atomically
from ..store.filters.expression import filtering
from ..store.outputs import distinct_files_of
from ..types import JsonObject
from . import entry


def main(words: list[str]) -> int:
    """Exit code 1 if no row was written."""
    command = entry.parse_plain(words, BranchConfig)
    paths, _ = distinct_files_of(command.inputs)
    if not paths:
        raise ConfigError("name a file of rollouts: ng_branch results/rollouts.jsonl +turn=4 …")
    left_out = Counter[str]()
    with filtering(command.where) as keeps:
        rows = list(make_branches(paths, command.turn, keeps, left_out))
    if rows:
        command.output_jsonl_fpath.parent.mkdir(parents=True, exist_ok=True)
        lines = (orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
        write_atomically(command.output_jsonl_fpath, b"".join(lines))
    found: JsonObject = {
        "rows": len(rows),
        "file": str(command.output_jsonl_fpath) if rows else None,
        "turn": command.turn,
        "left_out": dict(left_out),
    }
    entry.show(found, format_found, as_json=command.json_output)
    return 0 if rows else entry.FAILED


def format_found(found: JsonObject) -> str:
    lines = [f"{number_of(number, 'rollout')}: {why}" for why, number in found["left_out"].items()]
    if not found["rows"]:
        return "\n".join(["no rollout was taken", *lines])
    about = f"{number_of(found['rows'], 'task')} that begin at turn {found['turn']}"
    use = f"Collect them: ng_collect_rollouts +input_jsonl_fpath={found['file']} …"
    return "\n".join([f"{found['file']}: {about}", *lines, use])
