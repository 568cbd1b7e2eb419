"""Where the time of a training step goes: waiting, updating, saving, and sending weights."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class PhaseTimer:
    """Measures the phases of one step.

    phase = PhaseTimer()
    with phase("update"):
        ...
    figures |= phase.figures()  # time/update_s, time/update_share, time/step_s
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._began = clock, clock()
        self._spent = dict[str, float]()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + self._clock() - began

    def figures(self) -> dict[str, float]:
        """Seconds of each phase and of the step, and the share of each phase."""
        step_s = self._clock() - self._began
        found = {"time/step_s": step_s}
        for name, spent_s in self._spent.items():
            found |= {f"time/{name}_s": spent_s, f"time/{name}_share": spent_s / (step_s or 1e-9)}
        return found
