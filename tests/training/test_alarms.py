"""Each alarm is said once on a run that has its fault, and never on a sound one."""

import math
import random
from collections.abc import Callable

import pytest

from rollout_kit.rl.alarms import BatchAlarms

Figures = dict[str, float]

STEPS = 120


def run_sound(seed: int) -> list[Figures]:
    """A run that learns: answers become half as long again, and every fifth step is evaluated."""
    rng, found = random.Random(seed), []
    for step in range(STEPS):
        skill = 0.4 + 0.3 * (1 - math.exp(-step / 50))
        figures = {
            "reward/mean": skill + rng.gauss(0, 0.03),
            "group/zero_variance_frac": 0.3 + rng.random() * 0.2,
            "policy/entropy": 0.5 * math.exp(-step / 100) + 0.05,
            "policy/grad_norm": math.exp(rng.gauss(0, 0.5)),
            "kl/mean": 0.001 * step,
            "length/mean": 200 * (1 + step / STEPS / 2) + rng.gauss(0, 20),
            "length/truncated_frac": 0.05 + rng.random() * 0.05,
            "staleness/max": 1.0,
            "weights/sync_lag": 0.0,
        }
        if step % 5 == 0:
            error = 0.02
            figures["eval/test/reward"] = skill - 0.05 + rng.gauss(0, error)
            figures["eval/test/reward_error"] = error
        found.append(figures)
    return found


FAULTS: dict[str, Callable[[int, Figures], Figures]] = {
    "group/zero_variance_frac": lambda step, old: {"group/zero_variance_frac": 0.95},
    "policy/entropy": lambda step, old: {"policy/entropy": 0.002},
    "policy/grad_norm is 500": lambda step, old: {"policy/grad_norm": 500.0},
    "policy/grad_norm is nan": lambda step, old: {"policy/grad_norm": math.nan},
    "reward/mean is inf": lambda step, old: {"reward/mean": math.inf},
    "kl/mean": lambda step, old: {"kl/mean": 0.9},
    "length/mean": lambda step, old: {"length/mean": 2000.0},
    "length/truncated_frac": lambda step, old: {"length/truncated_frac": 0.8},
    "staleness/max": lambda step, old: {"staleness/max": 9.0},
    "weights/sync_lag": lambda step, old: {"weights/sync_lag": 5.0},
    "eval/test/reward fell": lambda step, old: {
        name: value - 0.01 * (step - 60) if name == "eval/test/reward" else value
        for name, value in old.items()
    },
}


def list_alarms(run: list[Figures]) -> list[str]:
    alarms = BatchAlarms()
    return [said for figures in run for said in alarms.check(figures)]


@pytest.mark.parametrize("seed", range(3))
def test_a_sound_run_has_no_alarm(seed: int) -> None:
    assert list_alarms(run_sound(seed)) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_said_once(name: str) -> None:
    run = run_sound(0)
    faulty = [
        {**figures, **(FAULTS[name](step, figures) if step >= 60 else {})}
        for step, figures in enumerate(run)
    ]
    [said] = list_alarms(faulty)
    assert said.startswith(name)


def test_an_alarm_that_has_ended_may_begin_again() -> None:
    alarms = BatchAlarms()
    bad, good = {"kl/mean": 0.9}, {"kl/mean": 0.1}
    run = [bad] * 4 + [good] + [bad] * 4
    assert len([said for figures in run for said in alarms.check(figures)]) == 2
