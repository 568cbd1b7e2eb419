"""Asynchronous against synchronous training: a simulated trainer and model under a virtual clock.

python -m benchmarks.staleness [sigma]    # seconds of CPU, an hour of simulated time

The model has 128 places. A rollout takes a lognormal time: median 20 s and sigma 1, so the mean is
33 s, and one of a hundred takes 205 s. A step takes 32 groups of 8 rollouts and 60 s, and its
weights 2 s to reach the model. The buffer itself admits the groups, and drops what gets too stale.
"""

import random
import sys

from rollout_kit.rl.simulation.recording import RecordedRollout, RecordedTurn, Speed
from rollout_kit.rl.simulation.training import TrainingSetup, predict

PLACES, GROUP, BATCH, STEPS = 128, 8, 32, 40

MEDIAN_S, STEP_S, SYNC_S = 20.0, 60.0, 2.0

TOKEN_S = 0.01

DRAWN = 2000
"""Groups that are drawn, and then played in some order."""

SIGMA = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0


def draw_groups() -> list[list[RecordedRollout]]:
    rng = random.Random(0)

    def draw() -> RecordedRollout:
        took_s = MEDIAN_S * rng.lognormvariate(0, SIGMA)
        return RecordedRollout((RecordedTurn(round(took_s / TOKEN_S), 0.0),))

    return [[draw() for _ in range(GROUP)] for _ in range(DRAWN)]


def main() -> None:
    groups, first = draw_groups(), 0.0
    heads = (
        "staleness | s a step | speed-up | model idle | trainer waits | mean staleness | dropped"
    )
    print(f"| {heads} |")
    print("|---|---|---|---|---|---|---|")
    for staleness in (0, 1, 2, 4):
        setup = TrainingSetup(
            Speed(TOKEN_S),
            places=PLACES,
            batch=BATCH,
            group_size=GROUP,
            staleness=staleness,
            parallel=GROUP * DRAWN,
            step_s=STEP_S,
            sync_s=SYNC_S,
            steps=STEPS,
        )
        found = predict(groups, setup)
        first = first or found.step_s
        lags = found.staleness
        mean = sum(lag * number for lag, number in lags.items()) / sum(lags.values())
        print(
            f"| {staleness} | {found.step_s:.0f} | {first / found.step_s:.2f} × |"
            f" {1 - found.replicas_busy:.0%} | {found.trainer_waits:.0%} |"
            f" {mean:.2f} (at most {max(lags)}) | {found.dropped} |"
        )


if __name__ == "__main__":
    main()
