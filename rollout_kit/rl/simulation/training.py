"""A training under a virtual clock: groups are made by simulated replicas while the buffer gives
tickets, and a simulated trainer takes them. Admission, staleness and what is dropped are those of
the real buffer."""

import asyncio
import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from ...analysis.waste import ACKED, EQUAL, TRAINED, UNUSED
from ...api.testing import run_virtual
from ...errors import ConfigError
from ..buffer.group import BufferedGroup
from ..buffer.memory import MemoryBuffer
from ..buffer.policy import BufferPolicy
from ..simulated_trainer import SimulatedTrainer
from .recording import RecordedRollout, TokenSpeed
from .replicas import SimulatedReplica

LOOK_S = 1.0
"""After this time the buffer is asked again, even if nothing is known to have changed."""

NEVER_S = 1e12

MANY = 200
"""Groups for each one that the buffer takes ahead, after which it is clear that it drops all."""

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """A configuration that is to be tried."""

    speed: TokenSpeed
    replicas: int = 1
    places: int | None = None
    batch: int = 32
    group_size: int = 8
    staleness: int = 1
    filters: tuple[str, ...] = ()
    parallel: int = 64
    """Most rollouts in flight."""
    step_s: float = 60.0
    sync_s: float = 0.0
    steps: int = 20
    replica_usd: float = 0.0
    """Of an hour."""
    trainer_usd: float = 0.0
    seed: int = 0


@dataclass(slots=True)
class Prediction:
    """What a configuration comes to. Times are in seconds."""

    steps: int
    elapsed_s: float
    step_s: float
    rollouts_per_s: float
    tokens_per_s: float
    rollout_p50_s: float
    rollout_p95_s: float
    rollout_max_s: float
    last_part_s: float
    """From 95 to 100 % of the rollouts of a step, on average."""
    full_s: float | None
    """From a new version of the weights until as many rollouts are in flight as at most are, on
    average; None if that never happens within a step."""
    trainer_waits: float
    replicas_busy: float
    """Shares: of the time, and of the places in that time."""
    staleness: dict[int, int]
    """Steps → groups."""
    waste: dict[str, float]
    """Cause → share of the tokens."""
    dropped: int
    """Groups that the buffer dropped."""
    cost_usd: float
    usd_per_1000: float
    """Of 1,000 rollouts that the trainer used."""


def predict(groups: Sequence[Sequence[RecordedRollout]], setup: TrainingSetup) -> Prediction:
    """Play the recorded groups again, in an order that the seed decides, until the last step."""
    return run_virtual(SimulatedTraining(groups, setup).run())


@dataclass(slots=True)
class MadeGroup:
    """A group of the simulation: the times at which its rollouts ended, and what they were."""

    ends: list[float]
    members: list[RecordedRollout]
    version: int | None = None
    """The least of its rollouts."""

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.members)


@dataclass
class SimulatedTraining:
    """One run of a setup."""

    groups: Sequence[Sequence[RecordedRollout]]
    setup: TrainingSetup
    made: dict[str, MadeGroup] = field(default_factory=dict)
    durations: list[float] = field(default_factory=list)

    async def run(self) -> Prediction:
        setup, loop = self.setup, asyncio.get_running_loop()
        self._random = random.Random(setup.seed)
        self._replicas = [
            SimulatedReplica(setup.speed, setup.places) for _ in range(setup.replicas)
        ]
        self._parallel = asyncio.Semaphore(setup.parallel)
        self._in_flight, self._changed = InFlight(), asyncio.Event()
        self._num_before = 0
        policy = BufferPolicy.parse(
            {
                "batch": setup.batch,
                "staleness": setup.staleness,
                "filters": setup.filters,
                "reserve_s": NEVER_S,
                "visibility_s": NEVER_S,
                "remember": 1_000_000,
            }
        )
        self._buffer = MemoryBuffer(policy, clock=loop.time)
        trainer = SimulatedTrainer(
            self._buffer, setup.batch, setup.step_s, setup.sync_s, clock=loop.time
        )
        producing = asyncio.create_task(self._produce())
        steps = trainer.train(setup.steps, on_step=lambda _: self._follow_step())
        training = asyncio.create_task(steps)
        try:
            await asyncio.wait((producing, training), return_when=asyncio.FIRST_COMPLETED)
            if not training.done():
                await producing
                dropped = (await self._buffer.stats())["dropped"]
                causes = ", ".join(f"{number:,} groups as {why}" for why, number in dropped.items())
                raise ConfigError(f"no step is reached: the buffer drops {causes}")
            await training
            return await self._measure(trainer)
        finally:
            producing.cancel()
            training.cancel()

    def _follow_step(self) -> None:
        self._num_before = len(self.made)
        self._in_flight.note_update()
        self._changed.set()

    async def _produce(self) -> None:
        """Begin groups while the buffer gives tickets, and rollouts while there is room. Returns if
        groups are made in vain."""
        number, most = 0, MANY * self.setup.batch * (1 + self.setup.staleness)
        async with asyncio.TaskGroup() as running:
            while len(self.made) - self._num_before < most:
                [ticket] = await self._reserve()
                number += 1
                group = MadeGroup([], self._draw())
                for member in group.members:
                    await self._parallel.acquire()
                    running.create_task(self._make(f"{number}", group, member, ticket))

    async def _reserve(self) -> list[str]:
        """A ticket, once there is one."""
        while True:
            self._changed.clear()
            if tickets := await self._buffer.reserve(1):
                return tickets
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_S)

    def _draw(self) -> list[RecordedRollout]:
        group = self._random.choice(self.groups)
        if len(group) == self.setup.group_size:
            return list(group)
        return self._random.choices(group, k=self.setup.group_size)

    async def _make(self, key: str, group: MadeGroup, member: RecordedRollout, ticket: str) -> None:
        """A rollout, and the group once it is the last one."""
        version = self._buffer.shelf.version
        if group.version is None:  # the first rollout begins first
            group.version = version
        began = asyncio.get_running_loop().time()
        with self._in_flight:
            replica = min(self._replicas, key=lambda each: each.load)
            for turn in member.turns:
                await replica.generate(turn.tokens)
                await asyncio.sleep(turn.pause_s)
            await asyncio.sleep(member.rest_s + member.verify_s)
        self._parallel.release()
        now = asyncio.get_running_loop().time()
        self.durations.append(now - began)
        group.ends.append(now)
        if len(group.ends) == len(group.members):
            self.made[key] = group
            lines = [{"reward": each.reward} for each in group.members]
            given = BufferedGroup(key, lines, [], group.version, self._buffer.shelf.version)
            await self._buffer.put(given, ticket=ticket)
            self._changed.set()

    async def _measure(self, trainer: SimulatedTrainer) -> Prediction:
        figures, setup = trainer.figures(), self.setup
        elapsed_s, used = figures["elapsed_s"], figures["groups"] * setup.group_size
        settled = await self._buffer.list_settled(number=len(self.made))
        reasons = {each.key: each.reason for each in settled}
        waste = Counter[str]()
        for key, group in self.made.items():
            waste[find_cause(reasons.get(key), group)] += group.tokens
        hours = elapsed_s / HOUR_S
        cost_usd = hours * (setup.replicas * setup.replica_usd + setup.trainer_usd)
        trained = [self.made[key] for key, reason in reasons.items() if reason == ACKED]
        several = self.durations * (2 if len(self.durations) == 1 else 1)
        tail = statistics.quantiles(several, n=100, method="inclusive")
        return Prediction(
            steps=trainer.steps,
            elapsed_s=elapsed_s,
            step_s=elapsed_s / max(1, trainer.steps),
            rollouts_per_s=used / elapsed_s,
            tokens_per_s=sum(group.tokens for group in trained) / elapsed_s,
            rollout_p50_s=tail[49],
            rollout_p95_s=tail[94],
            rollout_max_s=max(self.durations),
            last_part_s=self._measure_last_part(trained),
            full_s=self._in_flight.full_s,
            trainer_waits=figures["idle_share"],
            replicas_busy=statistics.fmean(each.busy_s for each in self._replicas) / elapsed_s,
            staleness={int(lag): number for lag, number in figures["staleness"].items()},
            waste={name: number / waste.total() for name, number in waste.most_common()},
            dropped=sum((await self._buffer.stats())["dropped"].values()),
            cost_usd=cost_usd,
            usd_per_1000=1000 * cost_usd / used if used else math.inf,
        )

    def _measure_last_part(self, trained: Sequence[MadeGroup]) -> float:
        """The groups of a step are those that were acknowledged together, in their order."""
        lasts: list[float] = []
        for start in range(0, len(trained), self.setup.batch):
            groups = trained[start : start + self.setup.batch]
            ends = sorted(end for group in groups for end in group.ends)
            lasts.append(ends[-1] - ends[math.ceil(0.95 * len(ends)) - 1])
        return statistics.fmean(lasts) if lasts else 0.0


class InFlight:
    """Counts rollouts in flight, and how long it takes from each update until the most are."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._rises: list[tuple[float, int]] = []
        self._updates = [self._loop.time()]

    def __enter__(self) -> None:
        self._number += 1
        self._rises.append((self._loop.time(), self._number))

    def __exit__(self, *error: object) -> None:
        self._number -= 1

    def note_update(self) -> None:
        self._updates.append(self._loop.time())

    @property
    def full_s(self) -> float | None:
        most = max((number for _, number in self._rises), default=0)
        times = [at for at, number in self._rises if number == most]
        found = [
            next((at - begin for at in times if begin <= at < end), None)
            for begin, end in pairwise(self._updates)
        ]
        known = [each for each in found if each is not None]
        return statistics.fmean(known) if known else None


def find_cause(reason: str | None, group: MadeGroup) -> str:
    """What became of a group, by the names of the report of a real run."""
    if reason != ACKED:
        return reason or UNUSED
    rewards = {each.reward for each in group.members}
    return EQUAL if len(rewards) == 1 else TRAINED
