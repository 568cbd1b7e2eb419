"""The conversations of one rollout, as its calls continue each other.

A call continues the earlier one whose prompt and reply it begins with. What the program sends back
for that reply is replaced by the reply of the record, with its token ids, reasoning and provider
data. So the model server continues the tokens that were sampled, and nothing is tokenized again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ...items import track
from ...responses import Item, is_of_model
from ...session import Session
from ...trajectory import ModelCall
from ...types import JsonObject
from ..transport.conversation import RequestReader, RequestWriter
from .dialects import UNSEEN, Dialect, ReadRequest
from .sameness import DIGEST_BYTES, key_of_item, without_volatile

EDITED = "the harness changed the text of an earlier turn"
SHORTENED = "the harness left out earlier turns"
AGAIN = "the same request was sent before"
BRANCH = "the harness returned to an earlier turn"
ANEW = "the harness began another conversation"


@dataclass(slots=True, eq=False)
class RecordedCall:
    """A call of a program, and what came of it."""

    asked_at: bytes
    """What stands for all items of its request."""
    parent: "RecordedCall | None"
    why: str
    """Why it continues no earlier call; empty if it does."""
    new: list[Item]
    """The items of its request that its parent does not have."""
    system: str
    has_tools: bool
    response: JsonObject = field(default_factory=dict)
    made: ModelCall = field(default_factory=ModelCall)
    chain: int = 0
    is_side: bool = False
    tools: list[Any] = field(default_factory=list)
    request: str = ""
    """The digest of its request, by which the journal finds it."""
    id: str = ""
    """Its name in the journal, if snapshots are taken."""
    ends: list[bytes] = field(default_factory=list)
    """What stands for its request with the reply: as recorded, and as programs send it back."""

    @property
    def output(self) -> list[Item]:
        return self.response["output"]


def list_items(call: RecordedCall | None) -> list[Item]:
    """The items of a conversation up to the reply of a call."""
    path: list[RecordedCall] = []
    while call is not None:
        path.append(call)
        call = call.parent
    return [item for each in reversed(path) for item in (*each.new, *each.output)]


class KnownCalls:
    """What the calls of a rollout are found by: their request, and its end with the reply."""

    def __init__(self) -> None:
        self.by_request: dict[bytes, RecordedCall] = {}
        self.by_end: dict[bytes, RecordedCall] = {}

    def add(self, call: RecordedCall) -> None:
        self.by_request[call.asked_at] = call
        for end in call.ends:
            self.by_end[end] = call


class Lane:
    """A conversation that grows. `items` are those of its last request, with the replies of the
    record in place of those that the program sent."""

    def __init__(self, dialect: Dialect, session: Session) -> None:
        self.dialect, self.session = dialect, session
        self.reader = RequestReader(dialect.field, keeps_first=True)
        self.writer = RequestWriter()
        self.items: list[Item] = []
        self.is_busy = False
        self.parent: RecordedCall | None = None
        self.params: JsonObject = {}
        """Create params of the call that is being answered."""
        self._opening: list[Item] | None = None
        self._exact = blake2b(digest_size=DIGEST_BYTES)
        self._same = blake2b(digest_size=DIGEST_BYTES)
        self._marks: dict[bytes, int] = {}
        """Requests that the items begin with → their number of items."""
        self._num_known = 0
        """Items that the parent has, with its reply."""
        self._rest = self._canonical = b""

    def takes(self, read: ReadRequest) -> bool:
        """Whether a request that begins with all of its items continues this lane."""
        return self._opening in (None, read.opening)

    def extend(self, read: ReadRequest, calls: KnownCalls) -> None:
        """Add the items of a request that are new."""
        if self._opening is None:
            self._opening = read.opening
            self._add(read.opening, calls)
        self._add(read.items, calls)

    def _add(self, items: Iterable[Item], calls: KnownCalls) -> None:
        self._mark(calls)
        before, num_before = self.parent, self._num_known
        for item in items:
            if not UNSEEN.isdisjoint(item):  # it says what only the model server may say
                item = {name: value for name, value in item.items() if name not in UNSEEN}
            self.items.append(track(item))
            if not (key := key_of_item(item)):
                continue
            self._exact.update(key)
            self._same.update(without_volatile(key))
            at = self._exact.digest()
            if (call := calls.by_end.get(at)) is not None:
                begin = self._marks.get(call.asked_at)
                if begin is not None:
                    self.items[begin:] = call.output
                    self.parent, self._num_known = call, len(self.items)
            if at in calls.by_request:
                self._marks[at] = len(self.items)
        if self.parent is not None and self.parent is not before:
            self._take_known(self.parent, before, num_before)

    def _take_known(self, parent: RecordedCall, before: RecordedCall | None, num: int) -> None:
        """Begin with the items as they were asked with: the program may spell them otherwise. The
        first `num` are those up to the reply of `before` already."""
        if parent.parent is before is not None and self._num_known - len(parent.output) >= num:
            items = [*parent.new, *parent.output]
        else:
            items, num = list_items(parent), 0
        num_items = num + len(items)
        self.items[num : self._num_known] = items
        if (added := num_items - self._num_known) != 0:
            for at, end in self._marks.items():
                self._marks[at] = end + added if end >= self._num_known else min(end, num_items)
            self._num_known = num_items

    def _mark(self, calls: KnownCalls) -> None:
        """Note that all items so far were a request by now."""
        at = self._exact.digest()
        if at in calls.by_request:
            self._marks.setdefault(at, len(self.items))

    @property
    def at(self) -> bytes:
        """What stands for all items."""
        return self._exact.digest()

    def begin_call(self, calls: KnownCalls) -> RecordedCall:
        """The call that asks with all items."""
        systems = [item for item in self.items[:2] if item.get("role") in ("system", "developer")]
        system = str(systems[0].get("content")) if systems else ""
        tools = self.params.get("tools") or []
        new = self.items[self._num_known :]
        why = self._find_reason(calls)
        return RecordedCall(self.at, self.parent, why, new, system, bool(tools), tools=tools)

    def _find_reason(self, calls: KnownCalls) -> str:
        """Why the items do not continue the newest turn that they could; empty if they do."""
        if self.at in calls.by_request:
            return AGAIN
        ends = [end for end in self._marks.values() if end >= self._num_known]
        if ends and (self.parent is None or max(ends) > self._num_known):
            return EDITED if is_of_model(self.items[max(ends)]) else SHORTENED
        return ANEW if self.parent is None and calls.by_request else ""

    def end_of(self, items: Iterable[Item]) -> bytes:
        """What stands for all items and those of a reply."""
        ended = self._exact.copy()
        for item in items:
            ended.update(key_of_item(item))
        return ended.digest()

    def digest(self, rest: bytes) -> str:
        """What stands for a request that may be answered from the record; `rest` is all of it but
        its items."""
        if rest != self._rest:
            self._rest, self._canonical = rest, without_volatile(rest)
        whole = self._same.copy()
        whole.update(self._canonical)
        return whole.hexdigest()
