"""ng_chaos: read the plan, run the drill, check its files, report."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ...collecting.plan import output_paths
from ...config.keys import ChaosConfig
from ...config.load import Config
from ...errors import ConfigError
from .again import verify_sample
from .check import CheckedFiles, Planned, check_files, check_plan
from .drill import Drill
from .findings import ChaosReport, Invariant
from .kills import draw_kills
from .leaks import find_leaks, list_files
from .planned import read_plan
from .processes import Processes
from .words import Words, build_words, has_own_log_dir

UNSEEN = "needs a run, not only files"


def chaos(
    config: Config[ChaosConfig], argv: Sequence[str], say: Callable[[str], None]
) -> ChaosReport:
    """Run and check a collection; raise ConfigError if there is nothing to run or check."""
    command = config.command
    _check(config)
    paths = output_paths(command)
    folder = paths.beside("_chaos")
    if config.instances:
        folder.mkdir(parents=True, exist_ok=True)
    report = ChaosReport(unchecked=dict.fromkeys(Invariant, UNSEEN))
    told, processes = build_words(config, argv, folder), Processes(folder)
    if not command.check_only:
        _run_drill(config, told, processes, report, say)
    found = check_files(paths)
    asked = read_plan(config, {*found.rollouts, *found.unverified, *found.failed})
    if not asked.keys:
        raise ConfigError(f"{asked.source}: contains no task that this command would collect")
    check_plan(found, asked)
    _report_files(report, found, asked)
    if config.instances and command.num_reverified and found.rewards:
        _report_sample(command, told, processes, report)
    places = [*paths.all(), folder]
    places += [command.log_dir] if command.log_dir and has_own_log_dir(command) else []
    if config.secrets:
        files = list_files(places)
        note = f"{len(config.secrets):,} searched for in {len(files):,} files"
        report.record(Invariant.SECRET, note, find_leaks(files, config.secrets))
    else:
        report.unchecked[Invariant.SECRET] = "the configuration has none"
    return report


def _check(config: Config[ChaosConfig]) -> None:
    """Check what the types of the keys cannot express."""
    command = config.command
    if command.output_jsonl_fpath is None:
        raise ConfigError("output_jsonl_fpath is missing: add +output_jsonl_fpath=rollouts.jsonl")
    if command.check_only:
        if not output_paths(command).main.exists():
            raise ConfigError(f"no output file {command.output_jsonl_fpath} to check")
        return
    if not config.instances:
        raise ConfigError("no server to start: add '+config_paths=[…]', or +check_only=true")
    if command.resume != "auto" or command.dry_run:
        raise ConfigError(
            "ng_chaos continues the collection that it kills: leave out resume and dry_run; to"
            " start over, give another output_jsonl_fpath"
        )


def _run_drill(
    config: Config[ChaosConfig],
    told: Words,
    processes: Processes,
    report: ChaosReport,
    say: Callable[[str], None],
) -> None:
    command = config.command
    paths = output_paths(command)
    held = check_files(paths)
    asked = read_plan(config, held.rollouts)
    owed = sum(key not in held.rollouts for key in asked.keys)
    if not owed:
        raise ConfigError(f"{paths.main} is complete already: give another output_jsonl_fpath")
    kills = draw_kills(command.kills)
    say(f"{len(asked.keys):,} rollouts planned, {owed:,} owed; {len(kills):,} kills to come")
    began = time.monotonic()
    drill = Drill(
        words=told,
        paths=paths,
        processes=processes,
        kills=deque(kills),
        num_planned=len(asked.keys),
        run_timeout_s=command.run_timeout_s,
        say=say,
    )
    drill.run()
    counts = ", ".join(f"{name} {number}×" for name, number in drill.killed.items()) or "nothing"
    ran = f"{drill.num_runs:,} runs in {time.monotonic() - began:.0f} s, {drill.longest_s:.1f} s"
    say(f"killed: {counts}")
    if drill.kills:
        say(f"{len(drill.kills):,} kills left at the end: increase +num_repeats for a longer run")
    report.record(Invariant.ENDS, f"{ran} the longest collector")
    report.record(Invariant.GONE, "checked after each kill and at the end")
    report.record(Invariant.KEPT, drill.looks, drill.findings)


def _report_files(report: ChaosReport, found: CheckedFiles, asked: Planned) -> None:
    report.record(Invariant.ACCOUNTED, found.count_planned(asked))
    report.record(Invariant.ONCE, f"{len(found.rollouts):,} keys")
    report.record(Invariant.KEPT, f"{len(found.rollouts):,} read")
    report.record(Invariant.HONEST, f"{found.rewards:,} rewards", found.findings)


def _report_sample(
    command: ChaosConfig, told: Words, processes: Processes, report: ChaosReport
) -> None:
    main: Path = output_paths(command).main
    again = verify_sample(
        main,
        command.num_reverified,
        command.kills.seed,
        told.ng_reverify,
        processes,
        command.run_timeout_s,
    )
    processes.end()
    note = again.why_not or f"{again.compared:,} verified again"
    report.record(Invariant.HONEST, note, again.findings)
