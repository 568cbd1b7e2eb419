"""ng_chaos: the plan, the drill, the check of what it leaves. The wiring."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ..collector.collection import output_paths
from ..config.keys.commands import ChaosConfig
from ..config.load import Config
from ..errors import ConfigError
from .again import verified_again
from .check import Checked, Planned, check_plan, checked
from .drill import Drill
from .findings import Invariant, Report
from .kills import kill_plan
from .leaks import files_below, leaks
from .planned import planned
from .processes import Processes
from .words import Words, has_own_log_dir, words

UNSEEN = "only a run shows it"


def chaos(config: Config, argv: Sequence[str], say: Callable[[str], None]) -> Report:
    """Everything that was looked at; ConfigError where there is nothing to look at."""
    command = config.command
    assert isinstance(command, ChaosConfig)
    _check(config, command)
    paths = output_paths(command)
    folder = paths.beside("_chaos")
    if config.instances:
        folder.mkdir(parents=True, exist_ok=True)
    report = Report(unchecked=dict.fromkeys(Invariant, UNSEEN))
    told, processes = words(config, argv, folder), Processes(folder)
    if not command.check_only:
        _drilled(config, command, told, processes, report, say)
    found = checked(paths)
    asked = planned(config, command, {*found.rollouts, *found.unverified, *found.failed})
    if not asked.keys:
        raise ConfigError(f"{asked.source}: no task in it that this command would collect")
    check_plan(found, asked)
    _judged(report, found, asked)
    if config.instances and command.num_reverified and found.rewards:
        _renewed(config, command, told, processes, report)
    places = [*paths.all(), folder]
    places += [command.log_dir] if command.log_dir and has_own_log_dir(command) else []
    if config.secrets:
        files = files_below(places)
        note = f"{len(config.secrets):,} looked for in {len(files):,} files"
        report.checked(Invariant.SECRET, note, leaks(files, config.secrets))
    else:
        report.unchecked[Invariant.SECRET] = "the configuration has none"
    return report


def _check(config: Config, command: ChaosConfig) -> None:
    """What the keys' types cannot say."""
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
            "ng_chaos continues what it kills: leave out resume and dry_run, and start over with"
            " another output_jsonl_fpath"
        )


def _drilled(
    config: Config,
    command: ChaosConfig,
    told: Words,
    processes: Processes,
    report: Report,
    say: Callable[[str], None],
) -> None:
    paths = output_paths(command)
    held = checked(paths)
    asked = planned(config, command, held.rollouts)
    owed = sum(key not in held.rollouts for key in asked.keys)
    if not owed:
        raise ConfigError(f"{paths.main} is complete already: give another output_jsonl_fpath")
    kills = kill_plan(command.kills)
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
    counts = ", ".join(f"{name} {number}×" for name, number in drill.killed.items()) or "nobody"
    ran = f"{drill.num_runs:,} runs in {time.monotonic() - began:.0f} s, {drill.longest_s:.1f} s"
    say(f"killed: {counts}")
    if drill.kills:
        say(f"{len(drill.kills):,} kills too late: all was done (+num_repeats=… makes it longer)")
    report.checked(Invariant.ENDS, f"{ran} the longest collector")
    report.checked(Invariant.GONE, "looked for after each kill and at the end")
    report.checked(Invariant.KEPT, drill.looks, drill.findings)


def _judged(report: Report, found: Checked, asked: Planned) -> None:
    report.checked(Invariant.ACCOUNTED, found.counted(asked))
    report.checked(Invariant.ONCE, f"{len(found.rollouts):,} keys")
    report.checked(Invariant.KEPT, f"{len(found.rollouts):,} read")
    report.checked(Invariant.HONEST, f"{found.rewards:,} rewards", found.findings)


def _renewed(
    config: Config, command: ChaosConfig, told: Words, processes: Processes, report: Report
) -> None:
    main: Path = output_paths(command).main
    again = verified_again(
        main,
        command.num_reverified,
        command.kills.seed,
        told.ng_reverify,
        processes,
        command.run_timeout_s,
    )
    processes.end()
    note = again.why_not or f"{again.compared:,} verified again"
    report.checked(Invariant.HONEST, note, again.findings)
