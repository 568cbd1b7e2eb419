"""ng_scan: look for what went wrong inside rollouts."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tqdm import tqdm

from ..analysis.scan.scan_report import ScanTally, format_scan
from ..analysis.scan.scanners import ScannerSpec, list_scanners
from ..analysis.scan.scanning import SCANNED, list_rollouts, open_scans, scan_file
from ..authoring.questions import ask, list_questions, task_of
from ..collecting.live.snapshot import Snapshot
from ..config.keys import ScanConfig
from ..errors import ConfigError, number_of
from ..serving.transport import loop
from ..store.filters.expression import filtering
from ..store.notes.labels import Labels
from ..store.outputs import distinct_files_of
from ..types import JsonObject
from . import entry


def main(words: list[str]) -> int:
    """Exit code 1 if a rollout could not be scanned."""
    command = entry.parse_plain(words, ScanConfig)
    specs, questions = list_scanners(command), list_questions(command)
    paths, _ = distinct_files_of(command.inputs)
    if not paths:
        raise ConfigError("name a file of rollouts: ng_scan results/rollouts.jsonl")
    if command.dry_run:
        for path in paths:
            print("\n".join(describe_plan(path, command, specs, questions)))
        return 0
    found = scan(paths, command, specs)
    entry.show(found, format_scan, as_json=command.json_output)
    return entry.FAILED if found["failed"] else 0


def scan(paths: list[Path], command: ScanConfig, specs: list[ScannerSpec]) -> JsonObject:
    """Scan what is not scanned yet, and count all findings."""
    names = [*(spec.name for spec in specs), *command.question]
    tally = ScanTally(names, command.labels, command.num_examples)
    counted, left_out = Counter[str](), Counter[str]()
    for path in paths:
        for name in command.question:
            counted += loop.run(ask_about(path, name, command))
        scans, labels = open_scans(path), Labels.beside(path)
        labels.refresh()
        with filtering(command.where) as keeps:
            rollouts = list_rollouts(path, keeps, left_out)
            found = scan_file(scans, rollouts, specs, command.time_limit_s, counted)
            bar = tqdm(found, f"Scanning {path.name}", unit=" rollouts", disable=None)
            for key, findings in bar:
                asked = [each for each in scans.findings(key) if each.scanner in command.question]
                tally.add(str(path), key, [*findings, *asked], labels.of(key))
    scanned = counted.pop(SCANNED, 0)
    return {
        "files": list(map(str, paths)),
        **tally.as_json(),
        "scanned_now": scanned,
        "failed": dict(counted),
        "left_out": dict(left_out),
    }


async def ask_about(path: Path, name: str, command: ScanConfig) -> Counter[str]:
    """Ask a model what is not answered yet. Returns how many answers are new (SCANNED), and why
    others are missing."""
    counted = Counter[str]()
    open_scans(path)
    with filtering(command.where) as keeps, _showing(name) as show:
        rollouts = partial(list_rollouts, path, keeps)
        table = await ask(path, name, command, rollouts, show)
    if table is None:
        return counted
    counted[SCANNED] = sum(1 for _ in table)
    for missing in (*table.unverified, *table.failures):
        counted[f"{name}: {missing.error.message if missing.error else 'no answer'}"] += 1
    return counted


@contextmanager
def _showing(name: str) -> Iterator[Callable[[Snapshot], None]]:
    """A bar that shows the snapshots of a collection at a terminal."""
    with tqdm(desc=f"Asking {name}", unit=" rollouts", disable=not sys.stderr.isatty()) as bar:

        def show(snapshot: Snapshot) -> None:
            bar.total = snapshot.this_run.total
            bar.update(snapshot.this_run.ended - bar.n)

        yield show


def describe_plan(
    path: Path, command: ScanConfig, specs: list[ScannerSpec], questions: dict[str, str]
) -> Iterator[str]:
    """What would be done with a file."""
    scans, all_rollouts = open_scans(path), 0
    scanners = {spec.name: spec.version for spec in specs}
    new, asked, chars, first = 0, Counter[str](), Counter[str](), ""
    with filtering(command.where) as keeps:
        for each in list_rollouts(path, keeps):
            all_rollouts += 1
            new += not scans.know(each.key, each.check, scanners)
            for name, version in questions.items():
                if scans.know(each.key, each.check, {name: version}):
                    continue
                task = task_of(command.question[name], each)
                prompt = task["responses_create_params"]["input"][0]["content"]
                first = first or prompt
                asked[name] += 1
                chars[name] += len(prompt)
    yield f"{path}: {number_of(all_rollouts, 'rollout')}, {new:,} to scan"
    for name, number in asked.items():
        tokens = f"about {chars[name] // 4:,} tokens of prompts"
        yield f"  {name}: {number_of(number, 'request')} to {command.question_model}, {tokens}"
    if first:
        yield f"The first request:\n{first}"
