"""The server processes of one run: which instance runs in which, and all of them kept alive."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from socket import socket

from ..config.instances import Instance
from ..errors import ConfigError
from ..serving import registry
from ..serving.service import Demands
from ..transport.http import HttpClient
from ..types import JsonObject
from . import processes
from .output import Output
from .sockets import Sockets
from .supervise import Keeper, Terms


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How server processes are kept. `show` gets each line of their output with its label, `tell`
    what befalls them; a log per server goes to a folder of the run's own in `log_dir`."""

    ready_timeout_s: float = 600
    max_restarts: int = 5
    log_dir: Path | None = None
    show: Callable[[str, str], None] | None = None
    tell: Callable[[str], None] = lambda line: None


class Fleet:
    """Started, ready and supervised one after the other; what `stack` leaves is stopped.

    `ends` are the supervisions: one is done, with the reason, once its process is given up.
    """

    def __init__(self, stack: AsyncExitStack, upkeep: Upkeep) -> None:
        self._stack = stack
        self._upkeep = upkeep
        self._keepers: dict[_Group, Keeper] = {}
        self.ends: list[asyncio.Task[str]] = []
        self.log_dir: Path | None = None

    async def start(
        self,
        instances: list[Instance],
        sockets: Sockets,
        plan: JsonObject,
        client: HttpClient,
        secrets: Iterable[str],
    ) -> None:
        """Start a process for each worker or label; none is ready yet."""
        if not instances:
            return
        upkeep, run_id = self._upkeep, str(plan["run_id"])
        if upkeep.log_dir:
            self.log_dir = upkeep.log_dir / f"{time.strftime('%F_%H-%M-%S')}_{run_id[:4]}"
        reaper = processes.Reaper()
        await reaper.start()
        self._stack.push_async_callback(reaper.close)
        self._stack.push_async_callback(self._stop, reaper)
        terms = Terms(
            run_id, client, reaper, upkeep.max_restarts, upkeep.ready_timeout_s, upkeep.tell
        )
        for group in _groups(instances):
            output = self._output(group.label, secrets)
            self._stack.callback(output.close)
            own = {each.name: sockets[each.name][group.worker] for each in group.instances}
            start = partial(group.spawned, plan, own, output)
            patient = replace(terms, ready_timeout_s=group.ready_timeout_s(terms.ready_timeout_s))
            keeper = self._keepers[group] = Keeper(group.label, own, output, patient, start)
            try:
                await keeper.start()
            except OSError as error:
                python = group.instances[0].python or "python"
                raise ConfigError(
                    f"server '{group.label}' cannot be started by {python}: {error.strerror}"
                ) from None

    def _output(self, label: str, secrets: Iterable[str]) -> Output:
        path = self.log_dir / f"{label}.log" if self.log_dir else None
        show, tell = self._upkeep.show, self._upkeep.tell
        return Output(label, path=path, secrets=secrets, show=show, tell=tell)

    def readiness(self) -> list[Coroutine[None, None, None]]:
        """One to await per process; ConfigError where it cannot start."""
        return [keeper.ready() for keeper in self._keepers.values()]

    def keep(self) -> None:
        """From here on whoever dies is started again."""
        self.ends = [asyncio.create_task(keeper.keep()) for keeper in self._keepers.values()]

    def of(self, instance: Instance) -> list[Keeper]:
        """The processes that serve an instance."""
        return [keeper for group, keeper in self._keepers.items() if instance in group.instances]

    async def _stop(self, reaper: processes.Reaper) -> None:
        for task in self.ends:
            task.cancel()
        await asyncio.gather(*self.ends, return_exceptions=True)
        children = [keeper.child for keeper in self._keepers.values() if keeper.child]
        await processes.stop(children)
        for child in children:
            reaper.forgets(child)  # else it would wait for its grace, and look for what is gone


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """What one process serves: the instances that share a label, or one worker of one instance."""

    label: str
    instances: list[Instance]
    worker: int = 0

    def ready_timeout_s(self, usual_s: float) -> float:
        """The usual one, or more where a server asks for it."""
        return max(usual_s, *(demands_of(each).ready_timeout_s for each in self.instances))

    async def spawned(
        self, plan: JsonObject, sockets: Mapping[str, socket], output: Output
    ) -> processes.Child:
        served = [
            {
                "name": each.name,
                "type": each.type,
                "implementation": each.implementation,
                "settings": each.settings,
            }
            for each in self.instances
        ]
        return await processes.spawn(
            self.label,
            {**plan, "instances": served},
            sockets,
            output,
            python=self.instances[0].python,
            env={key: value for each in self.instances for key, value in each.env.items()},
        )


def demands_of(instance: Instance) -> Demands:
    """What the implementation asks; nothing where it is known to another interpreter only."""
    try:
        cls = registry.load(instance.type, instance.implementation)
    except ConfigError:
        return Demands()
    return cls.demands(instance.settings)


def _groups(spawned: Iterable[Instance]) -> list[_Group]:
    shared: dict[str, list[Instance]] = {}
    groups: list[_Group] = []
    for each in spawned:
        if each.process:
            shared.setdefault(each.process, []).append(each)
        elif each.num_workers == 1:
            groups.append(_Group(each.name, [each]))
        else:
            workers = range(each.num_workers)
            groups += [_Group(f"{each.name}-{worker}", [each], worker) for worker in workers]
    return groups + [_Group(label, instances) for label, instances in shared.items()]
