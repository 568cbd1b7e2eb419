"""What a run's slots were waiting for, in one sentence, and what more of them would gain.

Pure: sums of times that are measured anyway, and a judgement of them. Two kinds of things hold a
run up: what a slot waits for while others go on (the model, a tool), and what they all queue for
(the collecting process itself, its journal). The second is judged first, because it makes every
time that is measured in that process look longer than it was.
"""

import math
from dataclasses import dataclass, field

from ..types import JsonObject

PARTS = {
    "model": "the model",
    "rate_limit": "the rate limit",
    "tools": "tools",
    "verification": "verification",
    "agent": "the agent's own work",
    "sessions": "opening and closing sessions",
    "failed": "what failed and the pauses after it",
}
"""What a slot's time can go into, with its name in a sentence."""

SHORT = {"client_cpu": "client CPU", "blocked": "client blocked", "rate_limit": "rate limit"}
"""Names in the progress line, where they differ from the figures' own."""

HELD = 0.8
"""Share of the time from which on the collecting process counts as what holds everything up."""

NO_GAIN = 1.1
"""Less than this is within what two runs differ by anyway."""

LIMITED = 0.05
"""Share of the slots' time in which a rate limit was clearly reached."""

FULL = 0.85
"""Share of the slots in use that counts as full: the last rollouts of a run never fill them."""

MORE = 2
"""The parallelism whose gain is told is so many times the present one."""

MAX_EARLY = 1024
"""Rollouts of the start that are kept to see how a part bears more of them."""

MIN_SEEN = 3

STARVED = 0.1
"""Share of the time without a core that is worth a word."""


@dataclass(slots=True)
class Growth:
    """How a part's time grows with what is in flight, seen while the slots fill for the first time.

    The n-th rollout that starts finds n − 1 before it. Where its time is the same as with all slots
    full, the part has room; where it grows in proportion, the part only makes a longer queue.
    """

    limit: int
    early: list[tuple[float, float]] = field(default_factory=list)
    """(log of the rollouts in flight at the start, log of the seconds)."""
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    """Of the log of the seconds, with all slots full."""

    def add(self, in_flight: int, seconds: float) -> None:
        if in_flight > 0.8 * self.limit:
            value = math.log(max(seconds, 1e-6))
            self.count += 1
            self.total += value
            self.squares += value * value
        elif self.limit < 8 * in_flight <= 4 * self.limit and len(self.early) < MAX_EARLY:
            self.early.append((math.log(in_flight), math.log(max(seconds, 1e-6))))

    def exponent(self) -> float | None:
        """The time goes like in flight to this power, at least (two standard errors below the best
        guess, from 0 to 1); None where too little was seen."""
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
    """Seconds of the slots by part, over all outcomes so far; `longest`: of one rollout."""

    limit: int
    model: float = 0.0
    rate_limit: float = 0.0
    tools: float = 0.0
    verification: float = 0.0
    agent: float = 0.0
    sessions: float = 0.0
    failed: float = 0.0
    slots: float = 0.0
    longest: float = 0.0
    outcomes: int = 0
    room: float = 0.0
    """The slots' time at most, where the limit adapts itself; else it is limit times time."""
    growth: dict[str, Growth] = field(init=False)

    def __post_init__(self) -> None:
        self.growth = {
            part: Growth(self.limit) for part in ("model", "tools", "verification", "agent")
        }

    def shares(self) -> dict[str, float]:
        """Of the slots' time, the largest first."""
        whole = self.slots or math.inf
        found = {part: getattr(self, part) / whole for part in PARTS}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class Client:
    """The collecting process over `elapsed_s`: shares of that time."""

    elapsed_s: float
    busy: float
    """Its event loop had something else to do when asked, or did not get to it."""
    cpu: float
    """Its CPU time, all threads; above 1 on several cores."""
    journal: float
    """Writing rollouts down, for which the event loop stands still."""
    starved: float = 0.0
    """Its event loop could run, and other processes had the cores."""

    @property
    def held(self) -> float:
        return min(1.0, max(self.busy, self.journal))


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`part` is one of PARTS, `client_cpu`, `blocked` or `journal`; `share` of the slots' time, or,
    for the last three, of the run's. `gain`: at most so many times the rollouts per second."""

    part: str
    share: float
    shares: dict[str, float]
    client: Client
    parallelism: int
    gain: float
    sentence: str

    def short(self) -> str:
        """`model 93%`: for the progress line."""
        return f"{SHORT.get(self.part, self.part)} {self.share:.0%}"

    def figures(self) -> JsonObject:
        """What the metrics file holds."""
        return {
            "name": self.part,
            "share": round(self.share, 4),
            "slots": {part: round(share, 4) for part, share in self.shares.items()},
            "client_busy": round(self.client.busy, 4),
            "client_cpu": round(self.client.cpu, 4),
            "journal": round(self.client.journal, 4),
            "parallelism": self.parallelism,
            "gain_of_twice_the_parallelism": round(self.gain, 2),
            "sentence": self.sentence,
        }


def verdict(spent: SlotTime, client: Client) -> Bottleneck | None:
    """None before anything has come out."""
    if not spent.outcomes or not spent.slots or not client.elapsed_s:
        return None
    shares = spent.shares()
    if client.held >= HELD:
        part, share, sentence = _of_the_client(client)
        return Bottleneck(part, share, shares, client, spent.limit, 1.0, sentence)
    part, share = next(iter(shares.items()))
    gain, why = _gain(part, share, spent, client)
    rest = [
        f"{PARTS[name].removeprefix('the ')} {_percent(value)}"
        for name, value in shares.items()
        if name != part and value >= 0.005
    ]
    rest.append(f"client CPU {_percent(client.cpu)} of a core")
    if client.journal >= 0.005:
        rest.append(f"journal {_percent(client.journal)}")
    used = spent.slots / (spent.room or client.elapsed_s * spent.limit)
    full = "the slots were full" if used >= FULL else f"{_percent(used)} of the slots were in use"
    sentence = (
        f"Bottleneck: {PARTS[part]}, {_percent(share)} of the slots' time ({', '.join(rest)});"
        f" {full}: {why}"
    )
    return Bottleneck(part, share, shares, client, spent.limit, gain, sentence)


def _of_the_client(client: Client) -> tuple[str, float, str]:
    """What the collecting process was held up by: part, share, sentence."""
    none = "raising parallelism gains nothing"
    cpu = f"CPU {_percent(client.cpu)} of a core"
    if client.starved >= STARVED:
        cpu += f", kept from one by other processes {_percent(client.starved)}"
    if client.journal >= client.held / 2:
        return (
            "journal",
            client.journal,
            f"Bottleneck: the journal, {_percent(client.journal)} of the run's time ({cpu}):"
            f" {none}; a faster disk does, or fsync=second where it is row",
        )
    if client.cpu + client.starved >= client.held / 2:
        return (
            "client_cpu",
            client.busy,
            f"Bottleneck: the collecting process's CPU, in demand {_percent(client.busy)} of the"
            f" time ({cpu}): {none}; servers in processes of their own (ng_run) do, or several"
            " collectors, each with a part of the input",
        )
    return (
        "blocked",
        client.busy,
        "Bottleneck: something that blocks the collecting process's event loop,"
        f" {_percent(client.busy)} of the time ({cpu}): {none}; a plain def instead of an async def"
        " that waits does, or servers in processes of their own (ng_run)",
    )


def _gain(part: str, share: float, spent: SlotTime, client: Client) -> tuple[float, str]:
    """At most how many times faster MORE times the parallelism would be, and the words for it.

    A bound, not a forecast: each limit that was seen lowers it, and none is guessed.
    """
    if part == "failed":
        return 1.0, "raising parallelism mends no failures; they are named at the end"
    if spent.rate_limit >= LIMITED * spent.slots:
        reached = "" if part == "rate_limit" else "the rate limit is reached already, so "
        return 1.0, f"{reached}raising parallelism gains nothing"
    if spent.outcomes <= spent.limit:
        rollouts = f"{spent.outcomes:,} rollouts for {spent.limit:,} slots"
        return 1.0, f"raising parallelism gains nothing ({rollouts})"
    if spent.room:
        return 1.0, f"parallelism adapts itself, and stands at {spent.limit:,}"
    growth = spent.growth.get(part)
    exponent = growth.exponent() if growth else None
    slower = 1 - share + share * MORE ** (exponent or 0.0)
    bounds = {
        f"as {PARTS[part]} got slower with more in flight": MORE / slower,
        "as the longest rollout takes a good part of the run": client.elapsed_s / spent.longest,
        "as the collecting process would be busy all the time": 1 / max(client.held, 0.01),
    }
    gain = max(1.0, min(*bounds.values(), float(MORE)))
    reason = min(bounds, key=bounds.__getitem__) if gain < 0.95 * MORE else ""
    if gain <= NO_GAIN:
        return gain, f"raising parallelism gains nothing, {reason}"
    if not reason and exponent is None and growth:
        reason = f"if {PARTS[part]} bears it, which was not seen"
    text = f"twice the parallelism would gain up to {math.floor(gain * 10) / 10:.1f}x"
    return gain, f"{text}, {reason}" if reason else text


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
