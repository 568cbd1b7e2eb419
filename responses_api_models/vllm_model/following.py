"""Bring the newest weights of a trainer to all replicas of one model, while requests are in flight.

All replicas have one version, or they are left out. Whole checkpoints are loaded into paused
engines: requests in flight go on with the new weights. A new adapter is loaded beside the old one:
requests in flight end with the old one. With `external` the versions are only observed.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path

from rollout_kit.rl.weights.folder import WeightStep
from rollout_kit.rl.weights.follower import Follower
from rollout_kit.rl.weights.sync import Mode, WeightSync
from rollout_kit.serving.transport.loop import gather_all
from rollout_kit.trajectory import Versions
from rollout_kit.types import JsonObject

from .endpoints import Endpoint, Endpoints
from .gate import Gate
from .weights import BadReplica, Replica, version_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InUse:
    """The version in use, and the folder that it was loaded from; None: the configured model."""

    version: int
    folder: Path | None


class Replicas:
    """The replicas of one model as one. `first` is the folder of the configured model, if it is
    known: weights to return to."""

    def __init__(
        self,
        mode: Mode | None,
        endpoints: Endpoints,
        gate: Gate,
        control: Callable[[str], Replica],
        first: Path | None,
    ) -> None:
        self.mode, self.in_use = mode, InUse(0, first.absolute() if first else None)
        self._endpoints, self._gate, self._control = endpoints, gate, control
        self._updating = asyncio.Lock()
        self._users: Counter[int] = Counter()
        """Adapter → requests that use it."""
        self._loaded: set[int] = set()
        self._is_asleep = False

    async def use(self, step: WeightStep) -> None:
        """Put the weights of a step to use on every replica. One that fails is left out;
        BadReplica if all fail, and then the version in use stays."""
        new = InUse(step.version, step.folder)
        async with self._updating:
            if self._is_asleep:
                raise BadReplica("vLLM sleeps")
            if self.mode == "lora_dir":
                self._loaded.add(new.version)
                await self._on_each(self._endpoints.well(), lambda each: self._add(each, new))
                self.in_use = new
                await self._remove_unused()
            else:
                async with self._gate.closed():
                    await self._replace(new)

    async def _replace(self, new: InUse) -> None:
        """Load whole weights into engines that are paused meanwhile."""
        if not (well := self._endpoints.well()):
            self.in_use = new  # servers that come back load it
            return
        paused = await self._on_each(well, lambda each: each.pause())
        try:
            await self._on_each(paused, lambda each: self._load(each, new))
            self.in_use = new
        except BadReplica:
            await self._return_to(self.in_use, paused)
            raise
        finally:
            await self._resume(paused)

    async def admit(self, endpoint: Endpoint) -> bool:
        """Whether a server that answers again has the version in use; load it if it has not."""
        replica, now = self._control(endpoint.url), self.in_use
        if self.mode in (None, "external"):
            return True
        async with self._updating:
            try:
                if self.mode == "lora_dir":
                    await self._add(replica, now)
                elif endpoint.is_suspect or await self._has_other(replica, now.version):
                    await self._load_again(replica, now)
            except BadReplica as error:
                endpoint.ejected_for = str(error)
                return False
            endpoint.is_suspect = False
            return now == self.in_use

    async def _has_other(self, replica: Replica, version: int) -> bool:
        return version > 0 and await replica.read_version() != version

    async def _load_again(self, replica: Replica, now: InUse) -> None:
        if now.folder is None or not now.folder.is_dir():
            raise BadReplica("its weights are unknown; start it again")
        await replica.pause()
        try:
            await self._load(replica, now)
        finally:
            await replica.resume()

    async def check(self) -> None:
        """Leave out servers that have lost the version in use, because they were started again."""
        if self.mode != "checkpoint_dir" or not (version := self.in_use.version):
            return
        for endpoint in self._endpoints.well():
            try:
                found = await self._control(endpoint.url).read_version()
            except BadReplica:
                continue  # requests that fail show whether it is well
            if found != version == self.in_use.version:
                self._leave_out(endpoint, BadReplica(f"it has version {found}, not {version}"))

    async def observe(self, endpoint: Endpoint) -> int | None:
        """The version of a server now."""
        if self.mode != "external":
            return self.in_use.version if self.mode else None
        try:
            return await self._control(endpoint.url).read_version()
        except BadReplica:
            return None

    def read_versions(self, choice: JsonObject, seen: Versions | None) -> list[int | None]:
        """The version of each token of a choice; `seen` are those around its request."""
        spans = choice.get("weight_versions")
        if spans and self.mode in ("checkpoint_dir", "external"):
            # before the first update vLLM's own label has no number
            first = 0 if self.mode == "checkpoint_dir" else None
            told = [(version_of(span["version"], first), span) for span in spans]
            return [version for version, span in told for _ in range(span["start"], span["end"])]
        version = seen.first if seen and seen.first == seen.last else None
        return [version] * len(choice.get("token_ids") or ())

    async def observe_all(self) -> list[int]:
        """The versions of all servers that are well and know theirs."""
        found = await gather_all(self.observe(each) for each in self._endpoints.well())
        return [version for version in found if version is not None]

    @asynccontextmanager
    async def using(self, version: int) -> AsyncIterator[None]:
        """Context of a request with this adapter, which stays loaded."""
        self._users[version] += 1
        try:
            yield
        finally:
            self._users[version] -= 1
            if version != self.in_use.version and not self._users[version]:
                await self._remove_unused()

    async def sleep(self, level: int) -> None:
        """Let requests in flight end, then have every replica release its memory."""
        async with self._updating:
            if self._is_asleep:
                return
            self._gate.close()
            self._is_asleep = True
            await self._gate.drain()
            await self._on_each(self._endpoints.well(), lambda each: each.sleep(level))

    async def wake(self) -> None:
        async with self._updating:
            if self._is_asleep:
                await self._on_each(self._endpoints.well(), lambda each: each.wake())
                self._is_asleep = False
                self._gate.open()

    async def _on_each(
        self, endpoints: Sequence[Endpoint], act: Callable[[Replica], Awaitable[None]]
    ) -> list[Endpoint]:
        """Act on these servers; leave out those that fail. BadReplica if all do."""
        errors = await gather_all(self._attempt(each, act) for each in endpoints)
        failed = [(e, why) for e, why in zip(endpoints, errors, strict=True) if why is not None]
        for endpoint, why in failed if len(failed) < len(endpoints) else ():
            self._leave_out(endpoint, why)
        if len(failed) == len(endpoints):
            raise failed[0][1] if failed else BadReplica("no vLLM answers")
        return [e for e, why in zip(endpoints, errors, strict=True) if why is None]

    async def _attempt(
        self, endpoint: Endpoint, act: Callable[[Replica], Awaitable[None]]
    ) -> BadReplica | None:
        try:
            await act(self._control(endpoint.url))
        except BadReplica as error:
            return error
        return None

    def _leave_out(self, endpoint: Endpoint, why: BadReplica) -> None:
        log.warning("%s is left out: %s", endpoint.url, why)
        endpoint.is_suspect = True
        endpoint.num_spoiled += 1
        self._endpoints.eject(endpoint, str(why))

    async def _resume(self, endpoints: Sequence[Endpoint]) -> None:
        errors = await gather_all(
            self._attempt(each, lambda one: one.resume()) for each in endpoints
        )
        for endpoint, why in zip(endpoints, errors, strict=True):
            if why is not None:
                self._leave_out(endpoint, why)

    async def _load(self, replica: Replica, new: InUse) -> None:
        assert new.folder is not None
        await replica.reload(new.folder, is_new=new.version != self.in_use.version)
        await replica.name_version(new.version)

    async def _return_to(self, old: InUse, endpoints: Sequence[Endpoint]) -> None:
        """Load the version in use again after a failed update; leave out servers that cannot."""
        try:
            if old.folder is None or not old.folder.is_dir():
                raise BadReplica("an update failed, and the weights before it are gone")
            await self._on_each(endpoints, lambda each: self._load(each, old))
        except BadReplica as error:
            for endpoint in endpoints:
                self._leave_out(endpoint, error)

    async def _add(self, replica: Replica, new: InUse) -> None:
        if new.version and new.folder:
            await replica.add_adapter(new.version, new.folder)

    async def _remove_unused(self) -> None:
        for version in sorted(self._loaded - {self.in_use.version}):
            if not self._users[version]:
                self._loaded.discard(version)
                remove = methodcaller("remove_adapter", version)
                await gather_all(self._attempt(each, remove) for each in self._endpoints.well())


class Observer(Follower):
    """Follows no folder: the trainer updates the engines. It names the least of their versions."""

    def __init__(self, sync: WeightSync, name: str, replicas: Replicas) -> None:
        super().__init__(sync, name, replicas.use)
        self._replicas = replicas

    async def look(self) -> None:
        versions = await self._replicas.observe_all()
        if versions and (least := min(versions)) != self.version:
            self.version = least
            await self.announce()
