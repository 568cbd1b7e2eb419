"""The sessions that are open at one resources server, and their expiry.

A caller that was killed never closes its sessions: whoever is not heard of for `timeout_s` is
closed as if asked to, so that what it holds is let go.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Open:
    state: Any
    used_at: float
    num_calls: int = 0
    """Calls that are being answered now: a session at work never expires."""
    is_closing: bool = False


class OpenSessions:
    """State by session id. `close(id)` is awaited for each that expires, and removes it."""

    def __init__(self, timeout_s: float, close: Callable[[str], Awaitable[Any]]) -> None:
        self._timeout_s = timeout_s
        self._close = close
        self._open: OrderedDict[str, _Open] = OrderedDict()  # the one used last comes last
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, id: str) -> bool:
        return id in self._open

    def begin(self, id: str) -> None:
        """Open it, anew if it was open."""
        self._open[id] = _Open(None, asyncio.get_running_loop().time())
        self._open.move_to_end(id)
        if self._timer is None:
            self._arm(self._timeout_s)

    def end(self, id: str) -> None:
        self._open.pop(id, None)

    def state(self, id: str) -> Any:
        """What was set; None where nothing was, or there is no such session."""
        found = self._open.get(id)
        return found.state if found else None

    def set_state(self, id: str, state: Any) -> None:
        """KeyError where there is no such session."""
        self._open[id].state = state

    def begin_call(self, id: str) -> _Open | None:
        """A call in it begins; its end is told to `end_call`."""
        if (found := self._open.get(id)) is not None:
            found.num_calls += 1
        return found

    def end_call(self, id: str, begin_call: _Open | None) -> None:
        if begin_call is None:
            return
        begin_call.num_calls -= 1
        begin_call.used_at = asyncio.get_running_loop().time()
        if self._open.get(id) is begin_call:
            self._open.move_to_end(id)

    def _arm(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        """Close those that are due, and come back when the next may be."""
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
