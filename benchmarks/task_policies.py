"""How many groups teach something, if tasks that taught nothing are left out for some epochs.

python benchmarks/task_policies.py: 10,000 tasks, groups of 8, and as many groups as 10 epochs have.
A task's chance of success is drawn. The policy stays as it is, or learns: each epoch adds to the
log-odds of every task.
"""

import math
import random
from collections.abc import Callable

from rollout_kit.rl.producing.revisits import next_epoch

TASKS, MEMBERS, EPOCHS = 10_000, 8, 10

LEARNS = 0.15
"""Log-odds that an epoch of groups adds."""


def draw_mostly_decided(rng: random.Random) -> float:
    return rng.random() if rng.random() < 0.3 else float(rng.random() < 0.5)


DISTRIBUTIONS: dict[str, Callable[[random.Random], float]] = {
    "Beta(0.5, 0.5)": lambda rng: rng.betavariate(0.5, 0.5),
    "Beta(1, 3)": lambda rng: rng.betavariate(1, 3),
    "70 % at 0 or 1, 30 % uniform": draw_mostly_decided,
}


def improve(chance: float, gained: float) -> float:
    if chance in (0.0, 1.0):
        return chance
    return 1 / (1 + math.exp(-(math.log(chance / (1 - chance)) + gained)))


def count_informative(draw: Callable[[random.Random], float], learns: float, *, skips: bool) -> int:
    """Groups whose rewards differ, of as many as there are in EPOCHS epochs of all tasks."""
    rng = random.Random(0)
    chances = [draw(rng) for _ in range(TASKS)]
    known: list[list[tuple[int, bool]]] = [[] for _ in chances]
    left, found, epoch = TASKS * EPOCHS, 0, 0
    while left:
        gained = learns * (TASKS * EPOCHS - left) / TASKS
        for task, chance in enumerate(chances):
            if skips and next_epoch(known[task]) > epoch:
                continue
            now = improve(chance, gained)
            right = sum(rng.random() < now for _ in range(MEMBERS))
            is_informative = 0 < right < MEMBERS
            known[task].append((epoch, is_informative))
            found, left = found + is_informative, left - 1
            if not left:
                break
        epoch += 1
    return found


def main() -> None:
    print("| chances of success | policy | all tasks | `revisit=later` | ratio |")
    print("|---|---|---|---|---|")
    per = 1000 / (TASKS * EPOCHS * MEMBERS)
    for name, draw in DISTRIBUTIONS.items():
        for policy, learns in (("stays", 0.0), ("learns", LEARNS)):
            one, other = (count_informative(draw, learns, skips=each) for each in (False, True))
            rates = f"{one * per:.1f} | {other * per:.1f} | {other / one:.2f}"
            print(f"| {name} | {policy} | {rates} |")


if __name__ == "__main__":
    main()
