"""Commands as functions of their words, in this process."""

from collections.abc import Callable, Sequence
from functools import partial

from rollout_kit.commands import main


def as_function(name: str) -> Callable[[Sequence[str]], None]:
    """Runs a command; it ends with `SystemExit`, as in a shell."""
    return partial(main, name)
