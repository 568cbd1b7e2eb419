"""Choose what to kill and when, from a seed, before the drill starts."""

import itertools
import random
from dataclasses import dataclass
from typing import Literal

from ...config.keys import KillsConfig

Victim = Literal["collector", "server", "ng_run"]

LAST, LATEST = 0.9, 0.95
"""Share of the plan after which no kill is planned, and at which a pause ends, so that the end of
the collection runs undisturbed."""

MAX_PAUSE_S = 0.3
"""Maximum delay of a kill after its share of the plan is reached. Without a delay, every kill would
strike just after a line is written."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill, `pause_s` after the share `at` of the plan is on disk. `draw` selects one of several
    servers."""

    victim: Victim
    at: float
    pause_s: float
    draw: float


def draw_kills(kills: KillsConfig) -> list[Kill]:
    """Return kills in order of time; equal seeds give equal kills."""
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
