"""Keeps a model server at the newest version that its trainer has finished.

A step that is half written, damaged or cannot be loaded is refused and tried again for a while;
meanwhile the version in use stays. The newest usable step above it wins; steps between are skipped.
One step is loaded at a time. Versions only rise.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import ModelError, RolloutKitError
from ...serving.transport.loop import cancel_all
from ...time_limit import within
from ...types import JsonObject
from ..bucket import BucketError
from .folder import WeightStep, check_step
from .sync import WeightSync

log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 30.0
"""Between two tries of one step."""


@dataclass(frozen=True, slots=True)
class RefusedStep:
    """Why a step is not in use, and when it is tried again (monotonic clock)."""

    signature: tuple[int | str, ...]
    why: str
    num_tries: int
    next_at: float


class Follower:
    """Follows the steps of one folder. `load` puts a step to use, or raises and leaves the version
    in use as it is; `check` is called before each look. `version` is 0 until the first step is
    loaded."""

    def __init__(
        self,
        sync: WeightSync,
        name: str,
        load: Callable[[WeightStep], Awaitable[None]],
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.version = 0
        self._sync, self._name, self._load, self._check = sync, name, load, check
        self._steps = sync.open()
        self._step: WeightStep | None = None
        self._refused: dict[int, RefusedStep] = {}
        self._said: set[str] = set()
        self._took_s: float | None = None
        self._num_updates = 0
        self._looking = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    @property
    def step(self) -> WeightStep | None:
        """The step in use; None while that is the configured model."""
        return self._step

    @property
    def folder(self) -> Path:
        """The folder of this machine in which the steps are, or copies of them."""
        return self._steps.folder

    async def start(self) -> None:
        """Load the newest step, if there is one, and follow the folder from then on."""
        await self.look()
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        if self._task:
            await cancel_all([self._task])

    async def look(self) -> None:
        """Load the newest usable step, if it is above the version in use."""
        async with self._looking:
            if self._check:
                await self._check()
            steps = await asyncio.to_thread(self._steps.find)
            self._say_odd(steps)
            there = {step.version for step in steps}
            self._refused = {each: why for each, why in self._refused.items() if each in there}
            for step in steps:
                if step.version <= self.version:
                    return
                if self._is_due(step) and await self._try(step):
                    return

    async def wait_for(self, version: int, timeout_s: float) -> None:
        """Wait until exactly this version is in use; ModelError if it is over or does not come."""
        try:
            with within(timeout_s):
                async with self._changed:
                    await self._changed.wait_for(lambda: self.version >= version)
        except TimeoutError:
            why = f"version {version} of the weights did not come within {timeout_s:g} s"
            raise ModelError(f"{why}; in use is {self.version}", status=503) from None
        if self.version > version:
            why = f"version {version} of the weights is over: {self.version} is in use"
            raise ModelError(why, status=412, retryable=False)

    def figures(self) -> JsonObject:
        """What `GET /weight_version` says besides the version."""
        refused = {f"step_{version}": each.why for version, each in self._refused.items()}
        return {
            "updates": self._num_updates,
            **({} if self._took_s is None else {"update_s": round(self._took_s, 3)}),
            **({"refused": refused} if refused else {}),
        }

    async def _follow(self) -> None:
        is_cut_off = False
        while True:
            await asyncio.sleep(self._sync.poll_s)
            try:
                await self.look()
                is_cut_off = False
            except BucketError as error:
                if not is_cut_off:  # said once for each time
                    log.warning("%s: %s; version %d stays in use", self._name, error, self.version)
                is_cut_off = True
            except Exception:  # an update must not end those that follow
                log.exception("%s: looking for new weights failed", self._name)

    def _is_due(self, step: WeightStep) -> bool:
        known = self._refused.get(step.version)
        if known is None or known.signature != step.signature:
            return True
        return known.num_tries < self._sync.max_tries and time.monotonic() >= known.next_at

    async def _try(self, step: WeightStep) -> bool:
        began = time.monotonic()
        try:
            await asyncio.to_thread(self._steps.fetch, step)
            await asyncio.to_thread(check_step, step)
            await self._load(step)
        except BucketError:  # which says nothing about the step
            raise
        except (RolloutKitError, OSError, ValueError, KeyError, RuntimeError) as error:
            if await asyncio.to_thread(self._steps.has, step):  # else the trainer has removed it
                self._refuse(step, str(error) or type(error).__name__)
            return False
        self._took_s = time.monotonic() - began
        self._num_updates += 1
        self._step, self.version = step, step.version
        self._refused = {
            version: why for version, why in self._refused.items() if version > self.version
        }
        log.info("%s: version %d is in use", self._name, step.version)
        await self.announce()
        return True

    async def announce(self) -> None:
        """Wake those who wait for a version."""
        async with self._changed:
            self._changed.notify_all()

    def _refuse(self, step: WeightStep, why: str) -> None:
        known = self._refused.get(step.version)
        num_tries = 1
        if known and known.signature == step.signature:
            num_tries += known.num_tries
        pause_s = min(self._sync.poll_s * 2**num_tries, LONGEST_PAUSE_S)
        next_at = time.monotonic() + pause_s
        self._refused[step.version] = RefusedStep(step.signature, why, num_tries, next_at)
        stays = f"version {self.version} stays in use"
        if num_tries >= self._sync.max_tries:
            log.warning("%s: %s is given up: %s; %s", self._name, step, why, stays)
        elif num_tries == 1:
            log.warning("%s: %s is not loaded: %s; %s", self._name, step, why, stays)

    def _say_odd(self, steps: list[WeightStep]) -> None:
        """Say once what a trainer does that cannot be followed."""
        if self._step is None or not steps:
            return
        rewritten = [
            step
            for step in steps
            if step.version == self.version and step.signature != self._step.signature
        ]
        if rewritten:
            self._say(f"{self._step} was written again after it was loaded")
        elif steps[0].version < self.version:
            self._say(f"{self._sync.path} ends with step {steps[0].version}")

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            advice = "versions only rise: a trainer that starts over needs a new folder"
            log.warning(
                "%s: %s; version %d stays in use; %s", self._name, what, self.version, advice
            )
