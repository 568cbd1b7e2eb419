"""Where vllm_model sends requests, on a simulated fleet: cache hits that are lost, spread of load.

    python -m benchmarks.routing                 2 to 8 replicas, several workloads: a minute
    python -m benchmarks.routing --random        beside a choice of the least busy server alone

The fleet is compared with an oracle: the same servers with one cache in common, which has the size
of all caches together. No choice of servers can have more hits. The load of a server is the time
of its requests in flight.
"""

import argparse
import heapq
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from responses_api_models.vllm_model.routing import Routing

BLOCK = 16
"""Tokens of a cache's block."""

PREFILL_S = 1 / 20_000
"""Seconds a token of a prompt that is not cached."""

DECODE_S = 1 / 60
"""Seconds a token of an answer, as long as few requests are in flight."""

CROWD = 64
"""Requests in flight that double the time of a token."""


@dataclass(frozen=True)
class Workload:
    """Tasks with several rollouts each; every rollout has turns with a tool between them."""

    name: str
    repeats: int
    turns: tuple[int, int]
    """Fewest and most turns of a rollout."""
    prompt: int = 2000
    """Tokens of a task's prompt."""
    added: int = 600
    """Tokens that a turn adds: answer and tool output."""
    answer: int = 200
    tool_s: float = 1.0
    in_flight: int = 32
    """Rollouts in flight for each replica."""
    cache: int = 400_000
    """Tokens of one server's cache."""


WORKLOADS = (
    Workload("single turns, 8 repeats", 8, (1, 1), prompt=4000),
    Workload("single turns, 64 repeats", 64, (1, 1), prompt=4000, in_flight=64),
    Workload("5 to 15 turns, 8 repeats", 8, (5, 15)),
    Workload("the same, small caches", 8, (5, 15), cache=200_000),
    Workload("1 to 60 turns, 4 repeats", 4, (1, 60), cache=800_000),
    Workload("20 turns, no repeats", 1, (20, 20), cache=800_000),
    Workload("few in flight, 16 repeats", 16, (1, 8), in_flight=4),
)


@dataclass(eq=False)
class Simulated:
    """A server with a cache of blocks, least recently used first."""

    cache: OrderedDict[tuple[int, int], None]
    size: int
    in_flight: int = 0
    num_requests: int = 0
    busy_s: float = 0.0

    def take(self, blocks: list[tuple[int, int]]) -> int:
        """Take a prompt; the number of its blocks that were cached."""
        cached = next((at for at, one in enumerate(blocks) if one not in self.cache), len(blocks))
        for block in reversed(blocks):  # the end of a prefix is dropped before its beginning
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.size:
            self.cache.popitem(last=False)
        return cached


@dataclass
class Outcome:
    hits: int = 0
    """Blocks that were cached."""
    servers: list[Simulated] = field(default_factory=list)

    @property
    def spread(self) -> float:
        """Load of the busiest server, beside the mean."""
        loads = [each.busy_s for each in self.servers]
        return max(loads) * len(loads) / sum(loads)


Choose = Callable[[list[Simulated], str, str], Simulated | None]


def rollouts(work: Workload, number: int, seed: int) -> Iterator[tuple[int, int, int]]:
    """Task, number, and turns of each rollout, in the order in which a collection begins them."""
    draw = random.Random(seed)
    for rollout in range(number):
        yield rollout // work.repeats, rollout, draw.randint(*work.turns)


def simulate(
    work: Workload, replicas: int, choose: Choose, *, has_one_cache: bool = False, seed: int = 1
) -> Outcome:
    size = work.cache // BLOCK
    common: OrderedDict[tuple[int, int], None] = OrderedDict()
    outcome = Outcome()
    for _ in range(replicas):
        cache, room = (common, size * replicas) if has_one_cache else (OrderedDict(), size)
        outcome.servers.append(Simulated(cache, room))
    draw = random.Random(seed + 1)
    number = replicas * max(40, 16 * work.repeats, 4 * work.in_flight)
    coming = rollouts(work, number, seed)
    events: list[tuple[float, int, Callable[[float], None]]] = []
    count = iter(range(1 << 62))

    def at(when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(events, (when, next(count), act))

    def begin(now: float) -> None:
        if (drawn := next(coming, None)) is not None:
            ask(now, *drawn, 0)

    def ask(now: float, task: int, rollout: int, turns: int, turn: int) -> None:
        prompt = [(-1 - task, at) for at in range(work.prompt // BLOCK)]
        prompt += [(rollout, at) for at in range(turn * work.added // BLOCK)]
        server = choose(outcome.servers, f"s{rollout}", f"t{task}")
        assert server is not None
        cached = server.take(prompt)
        outcome.hits += cached
        server.in_flight += 1
        server.num_requests += 1
        tokens = draw.expovariate(1 / work.answer)
        took = (len(prompt) - cached) * BLOCK * PREFILL_S
        took += tokens * DECODE_S * (1 + server.in_flight / CROWD)
        server.busy_s += took

        def end(now: float) -> None:
            server.in_flight -= 1
            if turn + 1 < turns:
                later = now + draw.expovariate(1 / work.tool_s)
                at(later, lambda now: ask(now, task, rollout, turns, turn + 1))
            else:
                begin(now)

        at(now + took, end)

    for _ in range(work.in_flight * replicas):
        begin(0.0)
    while events:
        now, _, act = heapq.heappop(events)
        act(now)
    return outcome


def by_routing() -> Choose:
    return Routing[Simulated]().choose


def least_busy(servers: list[Simulated], session: str, task: str) -> Simulated:
    return min(servers, key=lambda each: (each.in_flight, each.num_requests))


def lost_and_spread(work: Workload, replicas: int, choose: Choose) -> tuple[float, float]:
    """The share of the oracle's hits that is lost, and the spread of load."""
    ours = simulate(work, replicas, choose)
    oracle = simulate(work, replicas, least_busy, has_one_cache=True)
    return 1 - ours.hits / oracle.hits, ours.spread


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.routing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--random", action="store_true", help="the least busy server alone, too")
    also = parser.parse_args().random
    print(f"{'workload':28}{'replicas':>9}{'hits lost':>11}{'spread':>8}")
    for work in WORKLOADS:
        for replicas in (2, 3, 4, 8):
            lost, spread = lost_and_spread(work, replicas, by_routing())
            line = f"{work.name:28}{replicas:9}{lost:11.1%}{spread:8.2f}"
            if also:
                lost, spread = lost_and_spread(work, replicas, least_busy)
                line += f"     least busy: {lost:6.1%}{spread:6.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
