"""Who is killed, and when: drawn from a seed before anything starts."""

import itertools
import random
from dataclasses import dataclass
from typing import Literal

from ..config.keys.commands import KillsConfig

Victim = Literal["collector", "server", "ng_run"]

LAST, LATEST = 0.9, 0.95
"""The share of the plan after which nobody is picked, and by which a pause is over: what is left
shows that it ends."""

MAX_PAUSE_S = 0.3
"""A kill comes so much later, at most, than its share of the plan was reached: else each would find
the same thing going on, a line just written."""


@dataclass(frozen=True, slots=True)
class Kill:
    """`at`: the share of the plan that is on disk before it strikes, `pause_s` later. `draw` picks
    among several victims."""

    victim: Victim
    at: float
    pause_s: float
    draw: float


def kill_plan(kills: KillsConfig) -> list[Kill]:
    """In their order. The same seed gives the same plan."""
    rng = random.Random(kills.seed)
    victims: list[Victim] = [
        *itertools.repeat("collector", kills.collector),
        *itertools.repeat("server", kills.servers),
        *itertools.repeat("ng_run", kills.ng_run),
    ]
    rng.shuffle(victims)
    shares = sorted(rng.uniform(0, LAST) for _ in victims)
    return [
        Kill(victim, share, rng.uniform(0, MAX_PAUSE_S), rng.random())
        for victim, share in zip(victims, shares, strict=True)
    ]
