"""Start commands as processes with output files, and find processes that outlive them."""

import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...serving.process_tree import find_marked, kill

MARK = "ROLLOUT_KIT_CHAOS"
"""Environment variable that marks all descendants of the commands."""

POLL_S = 0.02

LEFT_S = 10.0
"""Time limit for descendants to end after their command."""

SHOWN_LINES = 12

COMMANDS = {
    "ng_run": "run",
    "ng_collect_rollouts": "collect_rollouts",
    "ng_reverify": "reverify",
}


@dataclass(slots=True)
class Started:
    """A running command."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def status(self) -> int | None:
        return self.process.poll()

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.began

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the command; return False after the time limit."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def read_last_lines(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
        return "".join(f"\n    {line}" for line in lines) + f"\n    (its log: {self.log})"


@dataclass(slots=True)
class Processes:
    """Starts commands, with one output file each in `folder`; the commands mask secrets."""

    folder: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    number: int = 0

    def start(self, command: str, argv: Sequence[str]) -> Started:
        self.number += 1
        log = self.folder / f"{self.number:03d}-{command}.log"
        here = str(Path(__file__).resolve().parents[3])
        code = f"from rollout_kit.commands import main; main('ng_{COMMANDS[command]}')"
        path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-c", code, *argv],
                env={**os.environ, "PYTHONPATH": path, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only ng_chaos, which kills them
            )
        return Started(command, process, log)

    def find_alive(self, *but: Started) -> dict[int, str]:
        """Running descendants except `but`: pid → start time."""
        spared = {each.process.pid for each in but}
        found = find_marked(MARK, self.mark)
        return {pid: start for pid, start in found.items() if pid not in spared}

    def kill_left_over(self, *but: Started) -> list[str]:
        """Kill descendants that do not end in time; return their descriptions."""
        give_up = time.monotonic() + LEFT_S
        while (left := self.find_alive(*but)) and time.monotonic() < give_up:
            time.sleep(POLL_S)
        named = [f"pid {pid}: {_read_command_line(pid)}" for pid in sorted(left)]
        kill(left)
        return named

    def end(self) -> None:
        """Kill all descendants."""
        while left := self.find_alive():
            kill(left)
            time.sleep(POLL_S)


def _read_command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return "(ended)"
    return shlex.join(word.decode(errors="replace") for word in words)[:200]
