"""A program in a terminal of a session, as a server uses it."""

import asyncio
from collections.abc import Callable
from typing import Any

from .bounds import SessionRefused
from .output import Screen


class Terminal:
    """A command in a terminal of a session."""

    status: "asyncio.Future[dict[str, Any]]"

    def __init__(self, screen: Screen, end: Callable[[], None]) -> None:
        self.screen, self._end = screen, end

    @property
    def exit_status(self) -> int | None:
        """None as long as it runs."""
        is_over = self.status.done() and not self.status.exception()
        return self.status.result()["status"] if is_over else None

    def send(self, text: str) -> None:
        if self.screen.is_closed:
            raise SessionRefused("the program has ended")
        try:
            self.screen.send(text.encode())
        except BlockingIOError:
            raise SessionRefused("the program does not read what is sent") from None
        except OSError:
            raise SessionRefused("the program has ended") from None

    def stop(self) -> None:
        """Kill its process group, and close the terminal."""
        self._end()
        self.screen.close()
