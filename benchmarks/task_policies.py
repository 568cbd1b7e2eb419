"""How many groups teach something, by the policy that chooses the tasks of an epoch.

python benchmarks/task_policies.py: 10,000 tasks, groups of 8, and as many groups as 10 epochs have.
A task's chance of success is drawn. The model stays as it is, or learns: as many groups as an epoch
has add to the log-odds of every task.
"""

import math
import random
from collections.abc import Callable

from rollout_kit.rl.task_policies import (
    Backoff,
    Band,
    KnownGroup,
    TaskPolicy,
    Thompson,
    Ucb,
    Uniform,
)

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


POLICIES: tuple[TaskPolicy, ...] = (Uniform(), Backoff(), Band(), Thompson(), Ucb())


def count_informative(
    draw: Callable[[random.Random], float], learns: float, policy: TaskPolicy, *, seed: int = 0
) -> int:
    """Groups whose rewards differ, of as many as there are in EPOCHS epochs of all tasks."""
    rng = random.Random(seed)
    chances = [draw(rng) for _ in range(TASKS)]
    known: list[list[KnownGroup]] = [[] for _ in chances]
    left, found, epoch = TASKS * EPOCHS, 0, 0
    while left:
        gained = learns * (TASKS * EPOCHS - left) / TASKS
        for task, chance in enumerate(chances):
            if not policy.wants(f"{task}", epoch, known[task]):
                continue
            now = improve(chance, gained)
            right = sum(rng.random() < now for _ in range(MEMBERS))
            is_informative = 0 < right < MEMBERS
            known[task].append(KnownGroup(epoch, MEMBERS, right, is_informative))
            found, left = found + is_informative, left - 1
            if not left:
                break
        epoch += 1
    return found


def main() -> None:
    names = [str(getattr(each, "name", "")) for each in POLICIES]
    print(f"| chances of success | model | {' | '.join(names)} |")
    print("|---|---" + "|---" * len(names) + "|")
    per = 1000 / (TASKS * EPOCHS * MEMBERS)
    for name, draw in DISTRIBUTIONS.items():
        for model, learns in (("stays", 0.0), ("learns", LEARNS)):
            found = [count_informative(draw, learns, policy) for policy in POLICIES]
            cells = [f"{each * per:.1f} ({each / found[0]:.2f} ×)" for each in found]
            print(f"| {name} | {model} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
