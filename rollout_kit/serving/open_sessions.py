"""The open sessions of one resources server, and their expiry.

A caller that was killed never closes its sessions. So a session without a call for `timeout_s` is
closed, and releases what it holds.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..time_limit import running_loop


@dataclass(slots=True)
class _Open:
    state: Any
    used_at: float
    num_calls: int = 0
    """Calls in progress; a session with calls in progress does not expire."""
    is_closing: bool = False


class OpenSessions:
    """State by session id. `close(id)` is called for each session that expires; it calls `end`."""

    def __init__(self, timeout_s: float, close: Callable[[str], Awaitable[Any]]) -> None:
        self._timeout_s = timeout_s
        self._close = close
        self._open: OrderedDict[str, _Open] = OrderedDict()  # least recently used first
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, id: str) -> bool:
        return id in self._open

    def begin(self, id: str) -> None:
        """Open a session; one that is open already loses its state."""
        self._open[id] = _Open(None, running_loop().time())
        self._open.move_to_end(id)
        if self._timer is None:
            self._arm(self._timeout_s)

    def end(self, id: str) -> None:
        self._open.pop(id, None)

    def state(self, id: str) -> Any:
        """The session's state; None if it was not set or the session is not open."""
        found = self._open.get(id)
        return found.state if found else None

    def set_state(self, id: str, state: Any) -> None:
        """Set the session's state; KeyError if the session is not open."""
        self._open[id].state = state

    def begin_call(self, id: str) -> _Open | None:
        """Count a call in the session until `end_call` with the same id and the return value."""
        if (found := self._open.get(id)) is not None:
            found.num_calls += 1
        return found

    def end_call(self, id: str, begin_call: _Open | None) -> None:
        if begin_call is None:
            return
        begin_call.num_calls -= 1
        begin_call.used_at = running_loop().time()
        if self._open.get(id) is begin_call:
            self._open.move_to_end(id)

    def _arm(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        """Close the sessions that are due; set a timer for the next one."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        for id, found in self._open.items():
            due_s = found.used_at + self._timeout_s - now
            if due_s > 0:
                self._arm(due_s)
                return
            if not found.num_calls and not found.is_closing:
                found.is_closing = True
                task = asyncio.ensure_future(self._close(id))
                self._closing.add(task)
                task.add_done_callback(self._forget)
        if self._open:
            self._arm(self._timeout_s)

    def _forget(self, task: "asyncio.Future[Any]") -> None:
        self._closing.discard(task)  # type: ignore[arg-type]
        if not task.cancelled():
            task.exception()  # the server has logged what its close_session raised
