"""Run a collection, kill its processes at random times and restart it until it is complete."""

import json
import os
import signal
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...store.files import OutputPaths
from .findings import Finding, Invariant
from .kills import LATEST, Kill
from .processes import POLL_S, Processes, Started
from .witness import Witness
from .words import Words

PAUSED = 3
"""Exit status of a collector that stopped at a limit; the same command continues."""

MAX_VAIN = 3
"""Give up after this many collectors in a row that failed without being killed."""

STOP_S = 30.0
"""Time limit for ng_run to end after SIGINT."""

ASK_S = 5.0
"""Time limit of a request to the head server."""


@dataclass(slots=True)
class Drill:
    """Call `run` once; `findings`, `killed`, `num_runs` and `longest_s` then hold the result."""

    words: Words
    paths: OutputPaths
    processes: Processes
    kills: deque[Kill]
    num_planned: int
    run_timeout_s: float
    say: Callable[[str], None]
    findings: list[Finding] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    num_runs: int = 0
    longest_s: float = 0.0
    _witness: Witness = field(init=False)
    _counter: "LineCounter" = field(init=False)
    _done_before: int = 0
    _ng_run: Started | None = None
    _due: float | None = None
    """Time of the next kill, set once its share of the plan is on disk."""
    _is_excused: bool = False
    """Whether ng_run was killed under this collector, which may therefore fail."""
    _is_stuck: bool = False

    def __post_init__(self) -> None:
        self._witness = Witness(self.paths)
        self._counter = LineCounter(self.paths)
        self._done_before = self._counter.count()

    def run(self) -> None:
        """Run the drill; raise ConfigError if the commands cannot run at all."""
        try:
            if self.words.through_ng_run:
                self._start_ng_run()
            self._collect()
            self._stop_ng_run()
            self._record_left_over("all commands")
            self._witness.look()
            self.findings += self._witness.findings
        finally:
            self.processes.end()

    @property
    def looks(self) -> str:
        return f"{len(self._witness.lines):,} lines, checked {self._witness.looks:,} times"

    def _collect(self) -> None:
        """Run collectors until one finishes."""
        vain = 0
        while vain < MAX_VAIN:
            killed = self.killed.total()
            status = self._run_collector()
            if status in (0, 2) or self._is_stuck:
                return
            goes_on = status == PAUSED or self.killed.total() != killed
            vain = 0 if goes_on else vain + 1
        what = f"{MAX_VAIN} collectors in a row failed"
        self.findings.append(Finding(Invariant.ENDS, what))

    def _run_collector(self) -> int | None:
        """Run a collector; return its exit status, or None if it was killed."""
        collector = self._start("ng_collect_rollouts", self.words.collector)
        self._is_excused = False
        try:
            while (status := collector.status) is None:
                if self._is_late(collector):
                    return None
                if self._is_due() and self._strike(self.kills[0], collector):
                    self.kills.popleft()
                    self._due = None
                time.sleep(POLL_S)
        finally:
            self.longest_s = max(self.longest_s, collector.age_s)
        if status < 0:
            return None
        if status not in (0, 2, PAUSED) and not self._is_excused:
            if not self.killed:
                raise ConfigError(f"the collector cannot run: {collector.read_last_lines()}")
            what = f"a collector ended with status {status}: {collector.read_last_lines()}"
            self.findings.append(Finding(Invariant.ENDS, what))
        return status

    def _start(self, command: str, argv: list[str]) -> Started:
        self.num_runs += 1
        return self.processes.start(command, argv)

    def _is_late(self, started: Started) -> bool:
        if started.age_s <= self.run_timeout_s:
            return False
        self._is_stuck = True
        what = f"a run of {started.name} did not end in {self.run_timeout_s:g} s"
        self.findings.append(Finding(Invariant.ENDS, f"{what}: {started.read_last_lines()}"))
        started.process.kill()
        started.wait(STOP_S)
        return True

    def _is_due(self) -> bool:
        """Whether the next kill is due: its share of the plan is on disk and its pause is over."""
        if not self.kills:
            return False
        done = self._counter.count() - self._done_before
        share = done / (self.num_planned - self._done_before)
        if self._due is None and share >= self.kills[0].at:
            self._due = time.monotonic() + self.kills[0].pause_s
        return self._due is not None and (time.monotonic() >= self._due or share >= LATEST)

    def _strike(self, kill: Kill, collector: Started) -> bool:
        """Execute a kill; return False if there was nothing to kill."""
        self._witness.look()
        match kill.victim:
            case "collector":
                name = self._kill_collector(collector)
            case "server":
                name = self._kill_server(kill.draw)
            case "ng_run":
                name = self._kill_ng_run(collector)
        if name:
            self.killed[kill.victim] += 1
            left = len(self.kills) - 1
            done = f"{self._counter.count():,} of {self.num_planned:,} on disk"
            self.say(f"killed {name}, {done}; {left} more to come")
        return name is not None

    def _kill_collector(self, collector: Started) -> str:
        collector.process.kill()
        collector.wait(STOP_S)
        if not self.words.through_ng_run:
            self._record_left_over("a collector that was killed")
        self._witness.look()
        return "the collector"

    def _kill_server(self, draw: float) -> str | None:
        """Kill a ready server. ng_run rightly gives up servers that die while starting."""
        ready = [
            worker
            for server in self._ask("/server_instances") or ()
            for worker in server["workers"]
            if worker["state"] == "ready" and worker["pid"]
        ]
        if not ready:
            return None
        victim = ready[int(draw * len(ready))]
        with suppress(ProcessLookupError):
            os.kill(victim["pid"], signal.SIGKILL)
        return f"server {victim['label']}"

    def _kill_ng_run(self, collector: Started) -> str:
        assert self._ng_run is not None
        self._ng_run.process.kill()
        self._ng_run.wait(STOP_S)
        self._is_excused = True
        self._record_left_over("an ng_run that was killed", collector)
        self._start_ng_run()
        return "ng_run"

    def _start_ng_run(self) -> None:
        self._ng_run = started = self._start("ng_run", self.words.ng_run)
        while (self._ask("/") or {}).get("status") != "ok":
            if started.status is not None or started.age_s > self.run_timeout_s:
                raise ConfigError(f"ng_run does not start: {started.read_last_lines()}")
            time.sleep(POLL_S)

    def _stop_ng_run(self) -> None:
        if (started := self._ng_run) is None:
            return
        started.process.send_signal(signal.SIGINT)
        if not started.wait(STOP_S):
            what = f"ng_run did not end within {STOP_S:g} s of a SIGINT"
        elif started.status:
            what = f"ng_run ended with status {started.status}"
        else:
            return
        what = f"{what}: {started.read_last_lines()}"
        self.findings.append(Finding(Invariant.ENDS, what))
        started.process.kill()

    def _ask(self, path: str) -> Any:
        """Return the head server's reply, or None."""
        url = f"http://{self.words.head_server.host}:{self.words.head_server.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=ASK_S) as reply:
                return json.load(reply)
        except (OSError, ValueError):
            return None

    def _record_left_over(self, of: str, *but: Started) -> None:
        self.findings += [
            Finding(Invariant.GONE, f"outlived {of}: {each}")
            for each in self.processes.kill_left_over(*but)
        ]


class LineCounter:
    """Counts the lines of the output and reads each byte once."""

    def __init__(self, paths: OutputPaths) -> None:
        self._offsets = {paths.main: 0, paths.failures: 0}
        self._lines = 0

    def count(self) -> int:
        for path, offset in self._offsets.items():
            new = _read_from(path, offset)
            self._lines += new.count(b"\n")
            self._offsets[path] += len(new)
        return self._lines


def _read_from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read()
    except FileNotFoundError:
        return b""
