"""One run of an audit: start a watched process, collect its verdicts and observations.

A process that reports nothing for longer than one verdict may take is killed with its descendants,
and the case that it hung on is reported. If this process is killed, so are those.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from ..launch.processes import Child, Reaper, spawn
from ..serving.process_tree import MARK
from ..types import JsonObject

WATCH = Path(__file__).with_name("watch")

READY_S = 120.0
"""Time limit for loading the verifier."""

GRACE_S = 5.0
"""Added to the time limit of one verdict before a silent process is killed."""

ONCE_S = 1.0
"""A case whose verdict takes longer is verified only once, to keep the audit short."""

POLL_S = 0.05

MAX_OUTPUT_LINES = 100
"""Last lines of a process' output that are kept, for the reason why it ended."""

OWN_NETWORK = ("unshare", "--map-root-user", "--net", "--")
"""Runs a command in an empty network namespace, which also covers programs other than Python."""


@dataclass(frozen=True, slots=True)
class AuditStep:
    """Cases to verify, by number and in order, `at_once` of them concurrently. None is begun later
    than `budget_s` after the step began. `calls_tools`: even if the verdict needs only the
    response."""

    name: str
    cases: Sequence[int]
    at_once: int = 1
    budget_s: float | None = None
    calls_tools: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """How a run differs from the first one."""

    hash_seed: int = 0
    shift_s: float = 0
    without_network: bool = False


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """AuditVerdict on one case; if it failed, `reward` is None and `error` is set. `replies`: of
    the tools that were called. `tools_hung`: their calls took all the time, so there was none to
    verify."""

    reward: float | None
    scores: JsonObject
    error: str
    verify_s: float
    held_s: float
    replies: Sequence[str] = ()
    tools_hung: bool = False


@dataclass(slots=True)
class Played:
    """Result of a run: verdicts by step and case. If the run did not finish, `stopped` is the
    reason, `is_late` says whether it was killed, and `hung` is the case in progress."""

    about: JsonObject = field(default_factory=dict)
    steps: dict[str, dict[int, AuditVerdict]] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)
    stopped: str = ""
    is_late: bool = False
    hung: int | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """Settings common to all runs of an audit. `verifier`: name, implementation and settings.
    `urls`: servers that it refers to, and itself if it runs elsewhere. `obedient`: judges that are
    replaced by one that does what an answer says."""

    verifier: JsonObject
    folder: Path | None
    urls: Mapping[str, list[str]]
    cases: list[JsonObject]
    timeout_s: float
    obedient: Sequence[str] = ()

    @property
    def can_unshare_network(self) -> bool:
        """False if other servers must be reached."""
        return not self.urls and can_unshare_network()

    async def play(self, script: Sequence[AuditStep], setting: Setting = Setting()) -> Played:
        """Execute the script in a new process."""
        with tempfile.TemporaryDirectory(prefix="audit-") as place:
            results, seen = Path(place, "results"), Path(place, "seen")
            steps = [{**asdict(step), "cases": list(step.cases)} for step in script]
            plan = {
                "verifier": self.verifier,
                "urls": dict(self.urls),
                "cases": self.cases,
                "timeout_s": self.timeout_s,
                "obedient": list(self.obedient),
                "script": steps,
                "results": str(results),
            }
            mark = os.urandom(8).hex()
            has_own_network = setting.without_network and self.can_unshare_network
            command = [sys.executable, "-m", "rollout_kit.authoring.audit_child"]
            output = deque[bytes](maxlen=MAX_OUTPUT_LINES)
            child = await spawn(
                [*(OWN_NETWORK if has_own_network else ()), *command],
                self._environment(setting, mark, seen),
                take=output.append,
                mark=mark,
                line=orjson.dumps(plan) + b"\n",
            )
            reaper = Reaper()
            try:
                await reaper.start()
                reaper.add(child)
                is_late = await self._wait(child, results)
            finally:
                await child.end()
                await reaper.close()
            status = "" if is_late else f"status {child.process.returncode}"
            return self._read(results, seen, b"".join(output), status)

    def _environment(self, setting: Setting, mark: str, seen: Path) -> dict[str, str]:
        allow = [_parse_address(url) for urls in self.urls.values() for url in urls]
        watch: JsonObject = {"log": str(seen), "shift_s": setting.shift_s, "allow": allow}
        watch |= {"folder": str(self.folder or ""), "deny": setting.without_network}
        package = Path(__file__).resolve().parents[2]
        path = [str(WATCH), str(package), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONHASHSEED": str(setting.hash_seed),
            "ROLLOUT_KIT_WATCH": orjson.dumps(watch).decode(),
            MARK: mark,
        }

    async def _wait(self, child: Child, results: Path) -> bool:
        """Wait for the end of the process; return True if it is late."""
        loop = asyncio.get_running_loop()
        size, heard_at = 0, loop.time()
        while child.is_running:
            await asyncio.sleep(POLL_S)
            now = _get_size(results)
            if now != size:
                size, heard_at = now, loop.time()
            patience_s = self.timeout_s + GRACE_S if size else READY_S
            if loop.time() - heard_at > patience_s:
                return True
        return False

    def _read(self, results: Path, seen: Path, said: bytes, status: str) -> Played:
        found, begun, finished = Played(), {}, False
        for line in _read_lines(results):
            if "begun" in line:
                begun[line["step"], line["begun"]] = True
            elif "case" in line:
                begun.pop((line["step"], line["case"]), None)
                verdict = AuditVerdict(
                    line.get("reward"),
                    line.get("scores", {}),
                    line.get("error", ""),
                    line["verify_s"],
                    line["held_s"],
                    line.get("replies", ()),
                    line.get("tools_hung", False),
                )
                found.steps.setdefault(line["step"], {})[line["case"]] = verdict
            else:
                found.about = line.get("about", found.about)
                finished = finished or "finished" in line
        for line in _read_lines(seen):
            found.seen.setdefault(line["kind"], []).append(line["what"])
        if not finished:
            tail = said.decode(errors="replace").strip()[-1000:]
            found.is_late = not status
            found.stopped = f"its process ended with {status}" if status else "it did not return"
            found.stopped += f": {tail}" if tail else ""
            found.hung = next((case for _, case in begun), None)
        return found


def _get_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@cache
def can_unshare_network() -> bool:
    """Whether this user can create a network namespace."""
    if shutil.which(OWN_NETWORK[0]) is None:
        return False
    return subprocess.run([*OWN_NETWORK, "true"], capture_output=True).returncode == 0


def _parse_address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Read complete lines; a killed writer may have left an incomplete one."""
    text = path.read_bytes() if path.exists() else b""
    return [orjson.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
