"""The tracebacks of failures that are shown during a run; the failures file has all of them."""

from ..errors import RolloutError
from ..types import Say
from .pacing.give_up import kind_of_failure

MAX_TRACEBACKS = 5


class Tracebacks:
    """Shows the traceback of each kind of failure once."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._shown: set[object] = set()
        """Kinds of failures."""

    def show(self, error: RolloutError) -> None:
        kind = kind_of_failure(error)
        if error.traceback and kind not in self._shown and len(self._shown) < MAX_TRACEBACKS:
            self._shown.add(kind)
            text = f"{error}\n{error.traceback}"
            self._say(text.rstrip(), event="traceback", server=error.server, error=error.message)
