"""Longest first: the tasks whose answers were long before begin before the others, so that no
epoch ends with a wait for a few long ones."""

from collections.abc import Iterator

from ...collecting.schedule import Later
from ...types import Attempt, Rollout

WINDOW = 4096
"""Tasks that are read ahead and put in order."""


class TaskLengths:
    """Mean output tokens of the rollouts of each task."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, int]] = {}
        """Task id → output tokens, and of how many rollouts."""
        self._tokens = self._number = 0

    def take(self, rollout: Rollout) -> None:
        """Follow a rollout."""
        task_id, tokens = rollout.key.task_id, rollout.info.output_tokens
        known, number = self._sums.get(task_id, (0, 0))
        self._sums[task_id] = known + tokens, number + 1
        self._tokens += tokens
        self._number += 1

    def of(self, task_id: str) -> float:
        """The mean of a task; that of all rollouts for a task without any."""
        tokens, number = self._sums.get(task_id) or (self._tokens, self._number)
        return tokens / number if number else 0.0

    def sort(self, attempts: Iterator[Attempt | Later]) -> Iterator[Attempt | Later]:
        """The attempts, those of the longest tasks first; the order within a task stays."""
        window: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            if isinstance(attempt, Later):
                yield attempt
            elif attempt.key.task_id in window or len(window) < WINDOW:
                window.setdefault(attempt.key.task_id, []).append(attempt)
            else:
                yield from self._empty(window)
                window = {attempt.key.task_id: [attempt]}
        yield from self._empty(window)

    def _empty(self, window: dict[str, list[Attempt]]) -> Iterator[Attempt]:
        for task_id in sorted(window, key=self.of, reverse=True):
            yield from window[task_id]
