"""The session that a call belongs to: one attempt's, never shared.

It travels in a ContextVar inside a process and as a header between processes; cookies that servers
set along the way belong to it.
"""

from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from secrets import token_hex

HEADER = "x-rollout-session"
"""Name of the HTTP header that carries the session's id."""


@dataclass(slots=True)
class Session:
    id: str = field(default_factory=token_hex)
    cookies: dict[str, str] = field(default_factory=dict)


_current: ContextVar[Session | None] = ContextVar("session", default=None)


def current_session() -> Session | None:
    return _current.get()


class entered:
    """Every call made inside belongs to `session`."""

    __slots__ = ("_session", "_token")

    def __init__(self, session: Session | None) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._token: Token[Session | None] = _current.set(self._session)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
