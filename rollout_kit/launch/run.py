"""What tells one run from another, and its own commands from a stranger's."""

import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Run:
    """`id` may be known to all; `token` opens what is guarded."""

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @classmethod
    def with_token(cls, token: str | None) -> "Run":
        """A new run; with a token of its own where none is given."""
        return cls(token=token) if token else cls()
