"""Merges outputs, and tells what was found."""

from ..collecting.cluster.merging.merge import expand, merge_files
from ..collecting.results import Status
from ..config.keys import MergeConfig
from ..errors import ConfigError, number_of
from ..store.files import OutputPaths
from ..types import JsonObject
from . import entry

TITLES = {
    "missing": "Missing",
    "duplicates": "Twice, with different content",
    "mixed_settings": "Made with different settings",
    "mixed_verifiers": "Verified by different verifiers",
    "torn": "Cut off",
    "foreign": "Other lines",
}

SHOWN = 10
"""Lines of each kind that people see."""


def merge(command: MergeConfig) -> tuple[JsonObject, int]:
    """The report, and the exit status: 2 if anything is odd; ConfigError or OutputError if nothing
    can be written."""
    if not command.inputs:
        raise ConfigError("name the files to merge:  ng_merge shards/*.jsonl +output_jsonl_fpath=…")
    output = OutputPaths.of(command.output_jsonl_fpath.expanduser())
    sources = [path for path in expand(command.inputs) if not output.has(path)]
    tasks, pass_threshold = command.input_jsonl_fpath, command.pass_threshold
    report = merge_files(sources, output, tasks, pass_threshold)
    is_odd = any(name in report for name in TITLES)
    return report, Status.NO_RESULT if is_odd else Status.FINISHED


def format_merge(report: JsonObject) -> str:
    """The report for people."""
    files, rollouts = number_of(report["files"], "file"), number_of(report["rollouts"], "rollout")
    lines = [f"Merged {files}: {rollouts} of {number_of(report['tasks'], 'task')}"]
    if report["reward"] is not None:
        lines[0] += f", mean reward {report['reward']:.3f}"
    others = (name for name in ("unverified", "failed") if report[name])
    lines += [f"{name.capitalize()}: {report[name]:,}" for name in others]
    if number := report["equal"]:
        lines.append(f"Twice, and equal: {number_of(number, 'line')}, written once")
    for name, title in TITLES.items():
        if found := report.get(name):
            lines += [f"{title}:", *(f"  {each}" for each in found[:SHOWN])]
            if len(found) > SHOWN:
                lines.append(f"  … and {len(found) - SHOWN:,} more; +json=true lists them")
    return "\n".join([*lines, f"Rollouts: {report['output']}"])


def main(words: list[str]) -> int:
    command = entry.parse_files(words, MergeConfig)
    found, status = merge(command)
    entry.show(found, format_merge, as_json=command.json_output)
    return status
