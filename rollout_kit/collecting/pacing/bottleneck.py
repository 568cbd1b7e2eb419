"""Finds what a run's slots wait for, and what more of them would gain, in one sentence.

Pure: it judges sums of measured times. A bottleneck is either a part that one slot waits for while
others go on (the model, a tool), or one that all slots share (the collecting process, its journal).
The second kind is judged first, because it lengthens every time measured in that process.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import number_of
from ...types import JsonObject
from .probe import WorkerLoad

PARTS = {
    "model": "the model",
    "rate_limit": "the rate limit",
    "tools": "tools",
    "verification": "verification",
    "agent": "the agent's own work",
    "sessions": "opening and closing sessions",
    "failed": "failed attempts and retry pauses",
    "workers": "the wait for a worker",
}
"""The parts of a slot's time, with their names in a sentence."""

SHORT = {
    "client_cpu": "client CPU",
    "blocked": "client blocked",
    "rate_limit": "rate limit",
    "workers": "wait for a worker",
    "workers_cpu": "workers' CPU",
    "workers_blocked": "workers blocked",
}
"""Names in the progress line that differ from the keys."""

AWAITED = 0.25
"""Share of the run without any rollout in flight from which the trainer is the bottleneck."""

HELD = 0.8
"""Share of busy time from which the collecting process is the bottleneck."""

NO_GAIN = 1.1
"""A smaller speed-up is within the difference of two equal runs."""

TOLD = 1.6
"""Highest gain that is reported where none was measured: a higher bound tells the reader little."""

LIMITED = 0.05
"""Share of the slots' time spent on a rate limit from which the limit counts as reached."""

FULL = 0.85
"""Share of the slots in use that counts as full; the end of a run never fills them."""

MORE = 2
"""The reported gain is the one expected at this multiple of the current parallelism."""

MAX_EARLY = 1024
"""Early rollouts kept to estimate how a part's time grows with the number in flight."""

MAX_FULL = 1024
"""Rollouts with all slots full that give the mean of a part's time, to a few per cent."""

MIN_SEEN = 3
"""Fewer rollouts give no estimate of that growth."""

SHORT_S = 1.0
"""A shorter run in which not even each slot had a rollout says nothing about the process."""

TOO_SHORT_S = 0.5
"""A shorter run is reported as too short to tell: its start and its end are a large part of it."""

MIN_PROBES = 8
"""Fewer probes of the event loop in a short run do not show that it is blocked: one may be late by
chance."""

REACHED = 0.85
"""Share of the sent requests in the engine below which the others are reported to wait before it;
one that is fed without delay has 0.97 and more."""

MIN_LOADS, MIN_SENT = 3, 4
"""Loads with as many requests sent that are needed for that."""

STARVED = 0.1
"""Share of the time without a core from which the sentence mentions it."""


@dataclass(slots=True)
class Growth:
    """How a part's time grows with the number in flight, measured while the slots first fill.

    The n-th rollout starts with n − 1 in flight. If times grow in proportion, more slots only
    lengthen the part's queue. If its time is the same as with all slots full, the part has spare
    capacity; but that only shows where the slots were not full while it went on.
    """

    limit: int
    early: list[tuple[float, float]] = field(default_factory=list)
    """(log of the rollouts in flight at the start, log of the seconds)."""
    middles: list[float] = field(default_factory=list)
    """When each of `early` was half done."""
    full_at: float = math.inf
    """When the slots were full."""
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    """`total`, `squares`: of the log of the seconds, with all slots full."""

    @property
    def is_known(self) -> bool:
        """Whether further rollouts would tell nothing more."""
        return self.count >= MAX_FULL

    @property
    def shows_room(self) -> bool:
        """Whether the part was seen with few in flight, and not only begun so."""
        return sum(middle < self.full_at for middle in self.middles) >= MIN_SEEN

    def add(self, in_flight: int, seconds: float, began: float = -math.inf) -> None:
        """Add a rollout that began with so many in flight, at `began` (s)."""
        if in_flight > 0.8 * self.limit:
            if math.isfinite(began):
                self.full_at = min(self.full_at, began)
            value = math.log(max(seconds, 1e-6))
            self.count += 1
            self.total += value
            self.squares += value * value
        elif self.limit < 8 * in_flight <= 4 * self.limit and len(self.early) < MAX_EARLY:
            self.early.append((math.log(in_flight), math.log(max(seconds, 1e-6))))
            self.middles.append(began + seconds / 2)

    def exponent(self) -> float | None:
        """Power of the number in flight that the time grows with, at least: two standard errors
        below the estimate, from 0 to 1. None with too few rollouts."""
        number = len(self.early)
        if number < MIN_SEEN or self.count < MIN_SEEN:
            return None
        mean = self.total / self.count
        steps = [(math.log(self.limit) - x, mean - y) for x, y in self.early]
        width = sum(dx * dx for dx, _ in steps)
        slope = sum(dx * dy for dx, dy in steps) / width
        apart = sum((dy - slope * dx) ** 2 for dx, dy in steps) / (number - 1)
        of_mean = max(0.0, self.squares / self.count - mean * mean) / self.count
        error = math.sqrt(apart / width + of_mean * (sum(dx for dx, _ in steps) / width) ** 2)
        return min(1.0, max(0.0, slope - 2 * error))


@dataclass(slots=True)
class SlotTime:
    """Slot seconds by part, over all outcomes so far; `longest`: of one rollout."""

    limit: int
    model: float = 0.0
    rate_limit: float = 0.0
    tools: float = 0.0
    verification: float = 0.0
    agent: float = 0.0
    sessions: float = 0.0
    failed: float = 0.0
    workers: float = 0.0
    slots: float = 0.0
    longest: float = 0.0
    outcomes: int = 0
    room: float = 0.0
    """Available slot seconds if the limit changes; else 0, and limit times elapsed time is used."""
    trainer: float = 0.0
    """Seconds of the run in which nothing was in flight, as the trainer had to be waited for."""
    sent: float = 0.0
    in_engine: float = 0.0
    """Requests that were sent to vLLM, and those in its engine, summed over `num_loads`."""
    num_loads: int = 0
    growth: dict[str, Growth] = field(init=False)

    def __post_init__(self) -> None:
        self.growth = {
            part: Growth(self.limit) for part in ("model", "tools", "verification", "agent")
        }

    def take_load(self, load: Mapping[str, Any]) -> None:
        """Note how many of the requests sent to an engine are in it, as running or queued."""
        inside = load.get("engine_running", 0) + load.get("engine_waiting", 0)
        # an engine without requests is one whose figures are of the time before
        if inside and (sent := load.get("engine_sent", 0)) >= MIN_SENT:
            self.sent += sent
            self.in_engine += inside
            self.num_loads += 1

    @property
    def reached(self) -> float | None:
        """Share of the requests sent that are in the engine; None if too little was seen."""
        return self.in_engine / self.sent if self.num_loads >= MIN_LOADS else None

    def shares(self) -> dict[str, float]:
        """Shares of the slots' time, the largest first."""
        whole = self.slots or math.inf
        found = {part: getattr(self, part) / whole for part in PARTS}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class Client:
    """The collecting process, in shares of `elapsed_s`."""

    elapsed_s: float
    busy: float
    """The event loop was busy or late when probed."""
    cpu: float
    """CPU time of all threads; above 1 on several cores."""
    journal: float
    """Journal writes, which block the event loop."""
    starved: float = 0.0
    """The event loop was ready to run, but other processes had the cores."""
    workers: WorkerLoad | None = None
    """Set if the attempts run in workers; then this process is their driver."""
    probes: int = MIN_PROBES
    """How often the event loop was probed."""

    @property
    def is_probed(self) -> bool:
        """Whether the probes alone show that something blocks the event loop."""
        return self.elapsed_s >= SHORT_S or self.probes >= MIN_PROBES

    @property
    def held(self) -> float:
        return min(1.0, max(self.busy, self.journal))

    @property
    def fullest(self) -> float:
        """The same of this process or of its workers, whichever is held more."""
        return max(self.held, self.workers.busy if self.workers else 0.0)

    @property
    def cpu_text(self) -> str:
        """CPU time of this process, and of its workers."""
        if self.workers is None:
            return f"client CPU {_percent(self.cpu)} of a core"
        of_workers = _percent(self.workers.cpu_s / self.elapsed_s)
        return f"CPU of the workers {of_workers} and of the driver {_percent(self.cpu)} of a core"


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`part`: one of PARTS, or what all slots share: `client_cpu`, `blocked`, `journal`,
    `workers_cpu`, `workers_blocked`, `trainer`. `share`: of the slots' time, or else the run's.
    `gain`: highest speed-up at MORE times the parallelism; None if too few rollouts ended to tell.
    """

    part: str
    share: float
    shares: dict[str, float]
    client: Client
    parallelism: int
    gain: float | None
    sentence: str
    reached: float | None = None
    """Share of the requests sent that are in vLLM's engine, if that is known."""

    @property
    def is_too_short(self) -> bool:
        """Whether the run is too short to tell."""
        return self.client.elapsed_s < TOO_SHORT_S

    def short(self) -> str:
        """`model 93%`: for the throughput log."""
        return "too short to tell" if self.is_too_short else shorten(self.part, self.share)

    def figures(self) -> JsonObject:
        """The entry in the metrics file."""
        found: JsonObject = {
            "name": self.part,
            "share": round(self.share, 4),
            "slots": {part: round(share, 4) for part, share in self.shares.items()},
            "client_busy": round(self.client.busy, 4),
            "client_cpu": round(self.client.cpu, 4),
            "journal": round(self.client.journal, 4),
            "parallelism": self.parallelism,
            "gain_of_twice_the_parallelism": self.gain and round(self.gain, 2),
            "sentence": self.sentence,
        }
        if self.is_too_short:
            found["too_short"] = True
        if self.reached is not None:
            found["engine_reached"] = round(self.reached, 4)
        if (load := self.client.workers) is not None:
            found["workers_busy"] = round(load.busy, 4)
            found["workers_cpu"] = round(load.cpu_s / self.client.elapsed_s, 4)
        return found


def shorten(part: str, share: float) -> str:
    """`model 93%`: in the progress line."""
    return f"{SHORT.get(part, part)} {share:.0%}"


def verdict(spent: SlotTime, client: Client) -> Bottleneck | None:
    """None before the first outcome."""
    if not spent.outcomes or not spent.slots or not client.elapsed_s:
        return None
    shares = spent.shares()
    is_telling = spent.outcomes > spent.limit or client.elapsed_s >= SHORT_S
    if is_telling and client.fullest >= HELD:
        of_workers = client.held < HELD and client.workers
        judged = _judge_workers(client, of_workers) if of_workers else _judge_client(client)
        part, share, sentence = judged
        if not part.endswith("blocked") or client.is_probed:
            said = _spell(sentence, client)
            return Bottleneck(part, share, shares, client, spent.limit, 1.0, said)
    if (waited := spent.trainer / client.elapsed_s) >= AWAITED:
        said = f"the trainer, waited for {_percent(waited)} of the run's time"
        said += f" ({client.cpu_text}): raising parallelism gains nothing; a higher staleness may"
        said = _spell(said, client)
        return Bottleneck("trainer", waited, shares, client, spent.limit, 1.0, said)
    part, share = next(iter(shares.items()))
    gain, why = _gain(part, share, spent, client)
    rest = [
        f"{PARTS[name].removeprefix('the ')} {_percent(value)}"
        for name, value in shares.items()
        if name != part and value >= 0.005
    ]
    rest.append(client.cpu_text)
    if client.journal >= 0.005:
        rest.append(f"journal {_percent(client.journal)}")
    used = spent.slots / (spent.room or client.elapsed_s * spent.limit)
    full = "the slots were full" if used >= FULL else f"{_percent(used)} of the slots were in use"
    sentence = (
        f"{PARTS[part]}, {_percent(share)} of the slots' time ({', '.join(rest)}); {full}: {why}"
    )
    said = _spell(sentence, client)
    return Bottleneck(part, share, shares, client, spent.limit, gain, said, spent.reached)


def _spell(sentence: str, client: Client) -> str:
    if client.elapsed_s >= TOO_SHORT_S:
        return f"Bottleneck: {sentence}"
    return (
        f"Bottleneck: the run was too short to tell ({client.elapsed_s:.1g} s); as far as it goes,"
        f" {sentence}"
    )


def _judge_workers(client: Client, load: WorkerLoad) -> tuple[str, float, str]:
    """The bottleneck inside the workers."""
    none = "raising parallelism gains nothing"
    if load.is_computing:
        return (
            "workers_cpu",
            load.busy,
            f"the CPU of the workers, which are busy {_percent(load.busy)} of the time"
            f" ({client.cpu_text}): {none}; more workers help where cores are free (num_workers)",
        )
    return (
        "workers_blocked",
        load.busy,
        "something that blocks the event loops of the workers,"
        f" {_percent(load.busy)} of the time ({client.cpu_text}): {none};"
        " make a blocking async def a plain def",
    )


def _judge_client(client: Client) -> tuple[str, float, str]:
    """The bottleneck inside the collecting process: part, share, sentence."""
    none = "raising parallelism gains nothing"
    apart = "run the servers as separate processes (ng_run)"
    name = "the collecting process"
    if client.workers is not None:
        name, apart = "the driver", "run several collections, each with a part of it (+shard=1/2)"
    cpu = f"CPU {_percent(client.cpu)} of a core"
    if client.starved >= STARVED:
        cpu += f", waiting for one {_percent(client.starved)}"
    if client.journal >= client.held / 2:
        return (
            "journal",
            client.journal,
            f"the journal, {_percent(client.journal)} of the run's time ({cpu}):"
            f" {none}; use a faster disk, or fsync=second instead of row",
        )
    if client.cpu + client.starved >= client.held / 2:
        if client.starved > client.cpu:
            apart = "other processes use the cores: run fewer of them, or take a larger machine"
        elif client.workers is None:
            apart += ", or several collectors, each with a part of the input"
        busy = f"{name}'s CPU, busy {_percent(client.busy)} of the time ({cpu})"
        return "client_cpu", client.busy, f"{busy}: {none}; {apart}"
    return (
        "blocked",
        client.busy,
        f"something that blocks {name}'s event loop,"
        f" {_percent(client.busy)} of the time ({cpu}): {none}; make a blocking async def a"
        f" plain def, or {apart}",
    )


def _gain(part: str, share: float, spent: SlotTime, client: Client) -> tuple[float | None, str]:
    """Highest speed-up at MORE times the parallelism, and its wording.

    It is a bound, not a forecast: each observed limit lowers it, and none is guessed. Where the run
    did not show that the part has room, there is none.
    """
    if part == "failed":
        return 1.0, "raising parallelism fixes no failures; retry_s of each line is their time"
    if part == "workers":
        return 1.0, (
            "raising parallelism gains nothing; in a short run this is their start, in a long one"
            " more workers help where cores are free (num_workers)"
        )
    if spent.rate_limit >= LIMITED * spent.slots:
        reached = "" if part == "rate_limit" else "the rate limit is reached already, so "
        return 1.0, f"{reached}raising parallelism gains nothing"
    if part == "model" and spent.reached is not None and spent.reached < REACHED:
        return 1.0, (
            f"vLLM's engine had {_percent(spent.reached)} of the requests that were sent to it. The"
            " others wait before the engine, in vLLM's API process: raising parallelism gains"
            " nothing; try more API processes (api_server_count: 2 or more of the vllm_model)"
        )
    if spent.outcomes <= spent.limit:
        ended = f"{number_of(spent.outcomes, 'rollout')} ended in {spent.limit:,} slots"
        return None, f"{ended}, too few to tell what more would gain"
    if spent.room:
        return 1.0, f"parallelism changes, and is now {spent.limit:,}"
    growth = spent.growth.get(part)
    exponent = growth.exponent() if growth else None
    slower = 1 - share + share * MORE ** (exponent or 0.0)
    bounds = {
        f"as {PARTS[part]} got slower with more in flight": MORE / slower,
        "as the longest rollout takes a large part of the run": client.elapsed_s / spent.longest,
        "as the collecting process would be busy all the time": 1 / max(client.held, 0.01),
        "as the workers would be busy all the time": 1 / max(client.fullest, 0.01),
    }
    gain = max(1.0, min(*bounds.values(), float(MORE)))
    reason = min(bounds, key=bounds.__getitem__) if gain < 0.95 * MORE else ""
    if gain <= NO_GAIN:
        return gain, f"raising parallelism gains nothing, {reason}"
    if growth is None or not growth.shows_room:
        if gain > TOLD:
            return None, "what more parallelism would gain was not measured"
        return gain, f"twice the parallelism would gain less than {gain:.1f}x, {reason}"
    text = f"twice the parallelism would gain up to {math.floor(gain * 10) / 10:.1f}x"
    return gain, f"{text}, {reason}" if reason else text


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
