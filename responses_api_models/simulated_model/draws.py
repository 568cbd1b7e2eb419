"""Random numbers as a function of a seed, of a request and of its number of repetitions.

So the same requests get the same answers and faults in any order of arrival.
"""

from hashlib import blake2b
from math import exp
from statistics import NormalDist

from .config import LogNormal

NORMAL = NormalDist()


class Draws:
    """A sequence of random numbers determined by `key`."""

    def __init__(self, *key: bytes | str | int) -> None:
        joined = b"|".join(part if isinstance(part, bytes) else str(part).encode() for part in key)
        self._state = blake2b(joined).digest()
        self._next = 0

    def uniform(self) -> float:
        """A number from 0 to 1, without 1."""
        if self._next == len(self._state):
            self._state = blake2b(self._state).digest()
            self._next = 0
        taken = int.from_bytes(self._state[self._next : self._next + 8], "big")
        self._next += 8
        return (taken >> 11) / 2**53

    def below(self, number: int) -> int:
        return int(self.uniform() * number)

    def of(self, wanted: float | LogNormal) -> float:
        """A fixed number unchanged, or a draw from a distribution."""
        if not isinstance(wanted, LogNormal):
            return wanted
        return wanted.median * exp(wanted.sigma * self._normal())

    def _normal(self) -> float:
        return NORMAL.inv_cdf(self.uniform() or 2**-53)


class Occurrences:
    """Counts how often each request was made."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}

    def next(self, digest: bytes) -> int:
        return self._seen.get(digest, 0)

    def count(self, digest: bytes) -> None:
        self._seen[digest] = self.next(digest) + 1
