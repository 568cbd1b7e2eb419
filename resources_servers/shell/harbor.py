"""A task in Harbor's folder: the session of its agent, its steps, and the verdict on each.

A verdict is that of a fresh session: it has the root of the task, the agent's changes, and tests
that the agent never saw. Programs that the agent has replaced are not carried over.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rollout_kit import JsonObject, TaskError
from rollout_kit.serving.harbor.grounds import Grounds
from rollout_kit.serving.harbor.rewards import (
    Rewards,
    choose_reward,
    is_enough,
    join_steps,
    parse_rewards,
)
from rollout_kit.serving.harbor.task_folder import HarborStep, HarborTask
from rollout_kit.serving.harbor.task_toml import Healthcheck, TaskEnvironment
from rollout_kit.serving.sandbox.limits import SandboxError
from rollout_kit.serving.sandbox.roots.build import Root
from rollout_kit.serving.sandbox.roots.packing import open_packed
from rollout_kit.serving.sandbox.session.allowed import reaching
from rollout_kit.serving.sandbox.session.bounds import (
    SessionEnded,
    SessionLimits,
    SessionRefused,
)
from rollout_kit.serving.sandbox.session.changes import Rules
from rollout_kit.serving.sandbox.session.client import ShellSession

from .calls import Room, ShellConfig
from .verifying import MAX_OUTPUT, Judged

STARTUP = ("/etc/profile", "/etc/profile.d", "/etc/bash.bashrc", "/etc/environment", "/etc/inputrc")
OF_HOME = (".bashrc", ".bash_profile", ".profile", ".bash_login", ".local", ".config", ".pip")

PROGRAMS = Rules(
    left_out=(
        *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt/bin"),
        *("/opt/packages", os.path.realpath(sys.base_prefix)),
        *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload"),
        *("/etc/alternatives", "/etc/python3", "/etc/pip.conf", "/etc/passwd", "/etc/shadow"),
        *STARTUP,
        *(f"/root/{name}" for name in OF_HOME),
        *("/tests", "/solution", "/logs/verifier"),
    ),
    open_to_new=("/usr/local", "/usr/share", "/usr/include", "/usr/src", "/usr/games"),
)
"""Changes that the tests would run, or that stand in their way."""

EVERYTHING = Rules(left_out=("/tests", "/solution", "/logs/verifier"))

FOLDERS = "/logs/agent /logs/verifier /logs/artifacts"

CLEAR = "{ [ -d /logs ] && [ ! -L /logs ]; } || rm -rf /logs; rm -rf /logs/verifier"
"""Whatever the agent has left in the place of what the tests write."""

MARGIN_S = 600.0
"""That a session lives longer than all steps of its agent."""


@dataclass(slots=True)
class StepResult:
    name: str
    rewards: Rewards | None
    details: JsonObject = field(default_factory=dict)


class HarborRoom(Room):
    """What a rollout of a task has: its session, and how far it is."""

    def __init__(self, task: HarborTask, grounds: Grounds, config: ShellConfig, root: Root) -> None:
        self.task, self._grounds, self._config, self._root = task, grounds, config, root
        self._stack = AsyncExitStack()
        self._number = 0
        self._results: list[StepResult] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, task: HarborTask, grounds: Grounds, config: ShellConfig) -> "HarborRoom":
        """A room in which the agent may begin the first step."""
        root = await grounds.build(task.recipe, task.name)
        room = cls(task, grounds, config, root)
        try:
            given = task.toml.environment
            hosts = grounds.allow(task.toml.agent, given)
            made = await room._start(root, given, hosts, room._stack)
            super(HarborRoom, room).__init__(made)
            await made.seal()
            if given.healthcheck:
                await _wait_until_healthy(made, given.healthcheck)
            await room._begin_step()
        except BaseException:
            await room.close()
            raise
        return room

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._ending is not None:
            self._ending.cancel()
        await self._stack.aclose()

    async def _start(
        self, root: Root, given: TaskEnvironment, hosts: list[str], stack: AsyncExitStack
    ) -> ShellSession:
        """A session of a root, which ends with `stack`."""
        sessions = await self._grounds.find_sessions(root)
        environment = {**root.environment, **self.task.environment}
        made = await sessions.create(
            self._limit(given), cwd=given.workdir or root.workdir, environment=environment
        )
        stack.callback(made.close)
        command = f'mkdir -p "$D" {FOLDERS} && chmod 777 {FOLDERS}'
        await made.exec(command, cwd="/", environment={"D": made.cwd})
        if hosts:
            made.environment |= await stack.enter_async_context(reaching(made, hosts))
        return made

    def _limit(self, given: TaskEnvironment) -> SessionLimits:
        config = self._config
        agent_s = [each.timeout_s or config.session_time_s for each in self.task.steps]
        return SessionLimits(
            time_s=sum(agent_s) + MARGIN_S,
            memory_mb=min(given.memory_mb or config.memory_mb, config.max_memory_mb),
            disk_mb=min(given.storage_mb or config.disk_mb, config.max_disk_mb),
            num_processes=config.num_processes,
        )

    @property
    def step(self) -> HarborStep:
        return self.task.steps[self._number]

    async def _begin_step(self) -> None:
        """Lay out the files of the step, and let its time begin."""
        step, session = self.step, self.kept
        session.user = step.user
        if step.workdir is not None:
            await _upload(session, [step.workdir], session.cwd)
            if (step.workdir / "setup.sh").is_file():
                done = await session.exec("bash ./setup.sh", timeout_s=MARGIN_S)
                if done.status:
                    why = f"setup.sh of {step.name} ended with status {done.status}: {done.stderr}"
                    raise TaskError(why[:1_000])
        if step.check is not None and step.check.healthcheck is not None:
            await _wait_until_healthy(session, step.check.healthcheck)
        self.why_late = ""
        if self._timer is not None:
            self._timer.cancel()
        if step.timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(step.timeout_s, self._end_step)

    def _end_step(self) -> None:
        self.why_late = f"the time limit of {self.step.timeout_s:g} s has passed"
        self._ending = asyncio.ensure_future(self._end_programs())

    async def _end_programs(self) -> None:
        try:
            await self.kept.end_processes()
        except SandboxError:
            self.why_late = "the session has ended"

    async def finish_step(self) -> str:
        """Verify the step, and begin the next one; what the agent is asked for next."""
        if len(self._results) > self._number:
            return "All steps are done."
        await self._verify_step()
        if not await self._advance():
            return "All steps are done."
        return f"Step {self._number + 1} of {len(self.task.steps)}:\n\n{self.step.instruction}"

    async def _advance(self) -> bool:
        """Begin the next step, if there is one and this one has its reward."""
        is_last = self._number + 1 == len(self.task.steps)
        if is_last or not is_enough(self._results[-1].rewards, self.step.min_reward):
            return False
        self._number += 1
        await self._begin_step()
        return True

    async def judge(self) -> Judged:
        """The verdict on all steps. Steps that the agent has not begun are verified as they are."""
        while len(self._results) <= self._number:
            await self._verify_step()
            if not await self._advance():
                break
        strategy = self.task.toml.multi_step_reward_strategy
        rewards = join_steps([each.rewards for each in self._results], strategy)
        last = self._results[-1].details
        details: JsonObject = {"rewards": rewards, **last}
        if len(self.task.steps) > 1:
            details["steps"] = [
                {"name": each.name, "rewards": each.rewards, **each.details}
                for each in self._results
            ]
        return Judged(choose_reward(rewards), details)

    async def _verify_step(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        step, session = self.step, self.kept
        session.user = ""
        await session.end_processes()
        for each in step.verifier.collected:
            session.user = str(each.user or "")
            await session.exec(each.command, timeout_s=each.timeout_sec)
            session.user = ""
        await session.end_processes()
        async with AsyncExitStack() as stack:
            try:
                fresh, carried = await self._carry(step, stack)
                result = await self._run_tests(step, fresh)
                result.details |= carried
            except SessionRefused as error:
                why = f"the final files cannot be verified: {error}"
                result = StepResult(step.name, None, {"verifier_error": why})
            except SessionEnded as error:
                if session.why_ended:
                    raise
                why = f"the session of the tests has ended: {error}"
                result = StepResult(step.name, None, {"verifier_error": why})
        self._results.append(result)

    async def _carry(
        self, step: HarborStep, stack: AsyncExitStack
    ) -> tuple[ShellSession, JsonObject]:
        """A fresh session with what the agent has left, and what was not carried over."""
        verifier = step.verifier
        if verifier.recipe is None or verifier.settings is None:
            given, root = self.task.toml.environment, self._root
            rules = EVERYTHING if self._config.keep_programs else PROGRAMS
            file, found = await self.kept.pack_changes(rules)
        else:
            given = verifier.settings
            root = await self._grounds.build(verifier.recipe, f"{self.task.name}, tests")
            file, found = await self.kept.pack(verifier.artifacts), {}
        stack.callback(os.close, file)
        hosts = self._grounds.allow(self.task.toml.verifier, given)
        fresh = await self._start(root, given, hosts, stack)
        await fresh.unpack(file, whole=True)
        if not found.get("num_dropped"):
            return fresh, {}
        return fresh, {"dropped_changes": found["dropped"]}

    async def _run_tests(self, step: HarborStep, fresh: ShellSession) -> StepResult:
        verifier = step.verifier
        await fresh.exec(CLEAR + (" /tests" if verifier.folders else ""), cwd="/")
        await fresh.exec(f"mkdir -p /tests {FOLDERS}; chmod 777 {FOLDERS}", cwd="/")
        await _upload(fresh, verifier.folders, "/tests")
        await fresh.exec(f"chmod +x {verifier.script}", cwd="/")
        fresh.user = verifier.user
        run = await fresh.exec(
            verifier.script,
            timeout_s=verifier.timeout_s,
            output_bytes=MAX_OUTPUT,
            environment=verifier.environment,
        )
        fresh.user = ""
        await fresh.end_processes()
        details: JsonObject = {
            "verifier_status": run.status,
            "verifier_ended_by": run.ended_by,
            "verifier_output": run.stdout + run.stderr,
        }
        if run.ended_by:
            why = f"the tests ended at their limit of {run.ended_by}"
            return StepResult(step.name, None, {**details, "verifier_error": why})
        text = await _read(fresh, "/logs/verifier/reward.txt")
        json = await _read(fresh, "/logs/verifier/reward.json")
        try:
            return StepResult(step.name, parse_rewards(text, json), details)
        except ValueError as error:
            return StepResult(step.name, None, {**details, "verifier_error": str(error)})


async def _read(session: ShellSession, path: str) -> bytes | None:
    try:
        return await session.read_bytes(path)
    except SessionRefused:
        return None


async def _upload(session: ShellSession, folders: Sequence[Path], target: str) -> None:
    """Write the files of folders of this machine, later ones over earlier ones."""
    for folder in folders:
        file = await asyncio.to_thread(open_packed, folder)
        try:
            await session.unpack(file, to=target, whole=True)
        finally:
            os.close(file)


async def _wait_until_healthy(session: ShellSession, check: Healthcheck) -> None:
    """Run the check until it succeeds; TaskError after its last try."""
    began, failures = time.monotonic(), 0
    while True:
        done = await session.exec(check.command, timeout_s=check.timeout_sec)
        if not done.status:
            return
        is_early = time.monotonic() - began < check.start_period_sec
        failures += not is_early
        if failures >= max(1, check.retries):
            raise TaskError(f"its healthcheck failed: {done.stderr[-500:]}")
        await asyncio.sleep(check.start_interval_sec if is_early else check.interval_sec)
