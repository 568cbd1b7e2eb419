"""A collection that is killed again and again, and started again each time, until it is done."""

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

from ..errors import ConfigError
from ..store.files import OutputPaths
from .findings import Finding, Invariant
from .kills import LATEST, Kill
from .processes import POLL_S, Processes, Started
from .witness import Witness
from .words import Words

PAUSED = 3
"""A collector's exit status at a limit of its own: the same command goes on."""

MAX_VAIN = 3
"""Collectors in a row that end without a result and without a kill: it will not get better."""

STOP_S = 30.0
"""Time for ng_run to end once it is asked to."""

ASK_S = 5.0


@dataclass(slots=True)
class Drill:
    """`run` it once; then `findings`, `killed`, `num_runs`, `longest_s` tell what it was like."""

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
    _progress: "Progress" = field(init=False)
    _done_before: int = 0
    _ng_run: Started | None = None
    _due: float | None = None
    """When the next kill strikes, once its share of the plan is there."""
    _is_excused: bool = False
    """Whether this collector lost its ng_run: it may end without a result."""
    _is_stuck: bool = False

    def __post_init__(self) -> None:
        self._witness = Witness(self.paths)
        self._progress = Progress(self.paths)
        self._done_before = self._progress.lines()

    def run(self) -> None:
        """ConfigError where the commands cannot run at all."""
        try:
            if self.words.through_ng_run:
                self._start_ng_run()
            self._collect()
            self._stop_ng_run()
            self._note_left_over("all commands")
            self._witness.look()
            self.findings += self._witness.findings
        finally:
            self.processes.end()

    @property
    def looks(self) -> str:
        return f"{len(self._witness.lines):,} lines, looked at {self._witness.looks:,} times"

    def _collect(self) -> None:
        """One collector after the other, until one ends by itself."""
        vain = 0
        while vain < MAX_VAIN:
            killed = self.killed.total()
            status = self._collected()
            if status in (0, 2) or self._is_stuck:
                return
            goes_on = status == PAUSED or self.killed.total() != killed
            vain = 0 if goes_on else vain + 1
        what = f"{MAX_VAIN} collectors in a row ended without a result"
        self.findings.append(Finding(Invariant.ENDS, what))

    def _collected(self) -> int | None:
        """One collector's exit status; None where it was killed."""
        collector = self._started("ng_collect_rollouts", self.words.collector)
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
                raise ConfigError(f"the collector cannot run: {collector.last_words()}")
            what = f"a collector ended with status {status}: {collector.last_words()}"
            self.findings.append(Finding(Invariant.ENDS, what))
        return status

    def _started(self, command: str, argv: list[str]) -> Started:
        self.num_runs += 1
        return self.processes.start(command, argv)

    def _is_late(self, started: Started) -> bool:
        if started.age_s <= self.run_timeout_s:
            return False
        self._is_stuck = True
        what = f"a run of {started.name} did not end in {self.run_timeout_s:g} s"
        self.findings.append(Finding(Invariant.ENDS, f"{what}: {started.last_words()}"))
        started.process.kill()
        started.wait(STOP_S)
        return True

    def _is_due(self) -> bool:
        """Whether the next kill's share of the plan is on disk, and its pause over."""
        if not self.kills:
            return False
        done = self._progress.lines() - self._done_before
        share = done / (self.num_planned - self._done_before)
        if self._due is None and share >= self.kills[0].at:
            self._due = time.monotonic() + self.kills[0].pause_s
        return self._due is not None and (time.monotonic() >= self._due or share >= LATEST)

    def _strike(self, kill: Kill, collector: Started) -> bool:
        """Whether somebody could be killed."""
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
            done = f"{self._progress.lines():,} of {self.num_planned:,} on disk"
            self.say(f"killed {name}, {done}; {left} more to come")
        return name is not None

    def _kill_collector(self, collector: Started) -> str:
        collector.process.kill()
        collector.wait(STOP_S)
        if not self.words.through_ng_run:
            self._note_left_over("a collector that was killed")
        self._witness.look()
        return "the collector"

    def _kill_server(self, draw: float) -> str | None:
        """One that is ready: a server that never gets to its work is given up, rightly."""
        ready = [
            worker
            for server in self._asked("/server_instances") or ()
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
        self._note_left_over("an ng_run that was killed", collector)
        self._start_ng_run()
        return "ng_run"

    def _start_ng_run(self) -> None:
        self._ng_run = started = self._started("ng_run", self.words.ng_run)
        while (self._asked("/") or {}).get("status") != "ok":
            if started.status is not None or started.age_s > self.run_timeout_s:
                raise ConfigError(f"ng_run does not start: {started.last_words()}")
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
        what = f"{what}: {started.last_words()}"
        self.findings.append(Finding(Invariant.ENDS, what))
        started.process.kill()

    def _asked(self, path: str) -> Any:
        """What the head server answers; None where it does not."""
        url = f"http://{self.words.head_server.host}:{self.words.head_server.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=ASK_S) as reply:
                return json.load(reply)
        except (OSError, ValueError):
            return None

    def _note_left_over(self, of: str, *but: Started) -> None:
        self.findings += [
            Finding(Invariant.GONE, f"outlived {of}: {each}")
            for each in self.processes.left_over(*but)
        ]


class Progress:
    """Counts lines that are written, each byte read once."""

    def __init__(self, paths: OutputPaths) -> None:
        self._offsets = {paths.main: 0, paths.failures: 0}
        self._lines = 0

    def lines(self) -> int:
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
