"""Turns that were stopped in the middle. The same request of the same rollout goes on from the
tokens that there are, so that a long answer is not generated twice.

A model server keeps them in memory, so that no agent carries them. A lost turn costs only its
generation. They belong to a rollout of one run: a request without a rollout, or for a required
version of the weights, keeps nothing.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b

from ..serving.model import REQUIRE_VERSION
from ..serving.transport.wire import canonical_request
from ..session import current_session
from ..types import JsonObject

MAX_KEPT_TOKENS = 4_000_000
"""In all kept turns, some 300 MB. The oldest turns go first."""


@dataclass(slots=True)
class PartialTurn:
    """The tokens that were sampled so far; of each its log-prob, and the version of the weights."""

    prompt: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    ending: asyncio.Task[None] | None = None
    """What still adds tokens after the request was stopped."""
    last_reply: JsonObject | None = None
    """An engine's reply, if the turn had ended before it was stopped."""

    def begin(self, prompt: list[int]) -> None:
        """Continue this prompt; after another one there are no tokens yet."""
        if prompt != self.prompt:
            self.clear()
            self.prompt = prompt

    def add(self, sampled: Sequence[tuple[int, float]], versions: Sequence[int | None]) -> None:
        """Take token ids with their log-probs, and their versions."""
        self.token_ids += [token_id for token_id, _ in sampled]
        self.log_probs += [log_prob for _, log_prob in sampled]
        self.versions += versions

    def rest_of(self, sampling: JsonObject) -> JsonObject:
        """The sampling parameters for what follows the tokens."""
        rest, number = dict(sampling), len(self.token_ids)
        if rest.get("max_tokens") is not None:
            rest["max_tokens"] = max(0, rest["max_tokens"] - number)
        if rest.get("seed") is not None:
            rest["seed"] += number  # the same seed would draw the same numbers again
        return rest

    def clear(self) -> None:
        self.token_ids, self.log_probs, self.versions, self.last_reply = [], [], [], None


class PartialTurns:
    """The turns that were stopped, by their requests. Equal requests of one rollout have a turn
    each."""

    def __init__(self, max_tokens: int = MAX_KEPT_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._kept: dict[str, list[PartialTurn]] = {}
        self.num_resumed = 0

    @contextmanager
    def resume(self, name: str) -> Iterator[PartialTurn]:
        """Context of a request, with the turn that it goes on from. If the request is stopped or
        fails, the turn is kept for the next one."""
        kept = self._kept.get(name)
        turn = kept.pop() if kept else PartialTurn()
        if kept is not None and not kept:
            del self._kept[name]
        self.num_resumed += kept is not None
        try:
            yield turn
        except BaseException:
            if name and (turn.token_ids or turn.ending):
                self._kept.setdefault(name, []).append(turn)
                self._drop_oldest()
            raise

    def figures(self) -> JsonObject:
        return {"resumed_turns": self.num_resumed}

    def _drop_oldest(self) -> None:
        total = sum(len(turn.token_ids) for kept in self._kept.values() for turn in kept)
        while total > self._max_tokens:
            oldest = next(iter(self._kept))
            total -= sum(len(turn.token_ids) for turn in self._kept.pop(oldest))


def name_request(params: JsonObject) -> str:
    """What equal requests of all attempts at one rollout share; empty if their tokens are not to be
    kept."""
    session = current_session()
    if session is None or not session.origin or params.get(REQUIRE_VERSION) is not None:
        return ""
    return session.origin + blake2b(canonical_request(params), digest_size=16).hexdigest()
