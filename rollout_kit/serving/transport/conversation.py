"""Requests of one conversation: each has the items of the last one and some more.

Only what is new is encoded, parsed and changed; the rest is passed on as bytes. The sender
recognizes items that are not new by their identity, and encodes those again that may have been
edited unnoticed (see `items`). A receiver over HTTP compares bytes, whoever wrote them.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from operator import is_
from typing import Any

import orjson

from ...errors import TaskError
from ...items import Edits, is_as_it_was
from ...types import JsonObject
from .encoding import encode, write
from .wire import bare_items, canonical_request, parse_object

INPUT = "input"

PLACE = b"\0"
"""Where the items belong in a request that is encoded without them. JSON has no such byte."""

DIGEST_BYTES, LENGTH_OF_OLD = 20, 32

Piece = bytes | memoryview


class SplitRequest:
    """A request in pieces. Each piece of its items but the first one begins with a comma."""

    __slots__ = ("_request", "after", "before", "follows", "name", "new", "old")

    def __init__(
        self, before: bytes, old: Sequence[Piece], new: bytes, after: bytes, follows: object
    ) -> None:
        self.before, self.old, self.new, self.after = before, old, new, after
        self.name, self.follows = object(), follows
        """What stands for this request, and for the one that has all of its `old` items."""
        self._request: JsonObject | None = None

    @property
    def request(self) -> JsonObject:
        """The request with its new items only."""
        if self._request is None:
            new = self.new[1:] if self.old else self.new
            self._request = parse_object(b"%b%b%b" % (self.before, new, self.after))
        return self._request

    @property
    def pieces(self) -> list[Piece]:
        return [self.before, *self.old, self.new, self.after]

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


class RequestWriter:
    """Writes the requests of one conversation."""

    def __init__(self) -> None:
        self._num_written = 0
        self._items: list[Any] = []
        """The items of the last request."""
        self._loose: list[Any] = []
        """Those of them whose edits are not noticed, and their JSON."""
        self._loose_raw = b""
        self._edits, self._num_edits = Edits(), 0
        self._pieces: list[bytes] = []
        """The items as JSON."""
        self._before = b""
        self._last: object = None

    def write(self, request: JsonObject) -> "SplitRequest | bytes":
        """A request as JSON. The first one is not kept, because most rollouts have no other."""
        self._num_written += 1
        items = request.get(INPUT)
        if self._num_written == 1 or not isinstance(items, list):
            return encode(request)
        try:
            return self._write(request, items)
        except (TypeError, ValueError, RecursionError):
            self._items = []
            return encode(request)  # raises, with what cannot be written

    def _write(self, request: JsonObject, items: list[Any]) -> SplitRequest:
        shell = write({**request, INPUT: orjson.Fragment(b"[%b]" % PLACE)})
        before, _, after = shell.partition(PLACE)
        if not self._has(before, items):
            self._items, self._loose, self._pieces, self._last = [], [], [], None
            self._loose_raw = b"[]"
        added = items[len(self._items) :]
        new = write(added)[1:-1]
        if new and self._pieces:
            new = b"," + new
        asked = SplitRequest(before, tuple(self._pieces), new, after, self._last)
        self._items += added
        if loose := [item for item in added if not is_as_it_was(item, self._edits)]:
            self._loose += loose
            self._loose_raw = write(self._loose)
        self._num_edits = self._edits.number
        append(self._pieces, new)
        self._before, self._last = before, asked.name
        return asked

    def _has(self, before: bytes, items: list[Any]) -> bool:
        """Whether a request has all items of the last one, as they were, and the same before."""
        return (
            0 < len(self._items) <= len(items)
            and self._num_edits == self._edits.number
            and all(map(is_, self._items, items))
            and self._before == before
            and self._loose_raw == write(self._loose)
        )


def append(pieces: list[bytes], new: bytes) -> None:
    """Append a piece. The last ones are joined when they are together as long as the one before, so
    that there are few, and no byte is copied often."""
    if new:
        pieces.append(new)
    while len(pieces) > 1 and len(pieces[-2]) <= 2 * len(pieces[-1]):
        pieces[-2:] = [pieces[-2] + pieces[-1]]


class RequestReader:
    """Reads the requests of one conversation, and makes of them what is passed on. Their items are
    the list `field`. The first request is kept for the next one only with `keeps_first`."""

    def __init__(self, field: str = INPUT, *, keeps_first: bool = False) -> None:
        self._field, self._keeps_first = field, keeps_first
        self.asked: SplitRequest | None = None
        """The last request; None if it is the first one, or is not written as ours are."""
        self._raw = b""
        self._end = 0
        """Offset in it of the bracket after the last item."""
        self._made: list[bytes] | None = None
        """What `make` has made of the items; None if they are as they came."""
        self._made_of: object = None
        self._made_for: object = None

    @property
    def size(self) -> int:
        """About how many bytes it keeps."""
        return len(self._raw) + sum(map(len, self._made or ()))

    def read(self, raw: bytes | SplitRequest) -> JsonObject:
        """The request. If it continues the last one, it has new items only; then it is the
        `request` of `asked`."""
        if isinstance(raw, SplitRequest):
            self.asked = raw
            return raw.request
        last, self._raw = self._raw, raw
        self.asked = self._read_on(last, raw)
        if self.asked is not None:
            return self.asked.request
        request = parse_object(raw)
        start = _find_items(request, self._field) if last or self._keeps_first else 0
        if start and (size := _size(request, raw, start, self._field)):
            self._end = start + size
            self.asked = SplitRequest(
                raw[:start], (), raw[start : self._end], raw[self._end :], None
            )
        return request

    def goes_on(self, raw: bytes) -> bool:
        """Whether a request may continue the last one: it begins with all of its items."""
        return self.asked is not None and raw.startswith(self._raw[: self._end])

    def _read_on(self, last: bytes, raw: bytes) -> SplitRequest | None:
        """The request if it continues the last one."""
        asked, end = self.asked, self._end
        if asked is None or not raw.startswith(last[:end]):
            return None
        is_more, start = raw[end : end + 1] == b",", len(asked.before)
        rest = raw[:start] + raw[end + is_more :]
        try:
            size = _size(parse_object(rest), rest, start, self._field)
        except TaskError:  # as a whole it may be JSON
            return None
        if size is None or is_more != (size > 0):
            return None
        self._end = end + is_more + size
        old = (memoryview(raw)[start:end],)
        return SplitRequest(raw[:start], old, raw[end : self._end], raw[self._end :], asked.name)

    def read_whole(self) -> JsonObject:
        """The last request with all of its items."""
        assert self.asked is not None
        return parse_object(bytes(self.asked)) if self.asked.old else self.asked.request

    def make(self, change: Callable[[list[Any]], list[Any]], made_for: object) -> list[Piece]:
        """The items of the last request, each changed by itself, as a JSON list in pieces. Only new
        ones are changed, unless the others were `made_for` something else."""
        asked = self.asked
        assert asked is not None
        goes_on = asked.old and asked.follows is self._made_of and made_for == self._made_for
        items = (asked.request if goes_on else self.read_whole())[self._field]
        made = orjson.dumps(change(items))[1:-1]
        if not goes_on:
            self._made = None if made == b"".join([*asked.old, asked.new]) else []
        elif made and self._made != []:
            made = b"," + made
        if self._made is None and goes_on and made != asked.new:
            self._made = [b"".join(asked.old)]
        if self._made is not None:
            append(self._made, made)
        self._made_of, self._made_for = asked.name, made_for
        found = [*asked.old, asked.new] if self._made is None else self._made
        return [b"[", *found, b"]"]


class Digests:
    """Digests of the requests of one rollout: equal for equal requests, whatever the ids of their
    items. Each one continues with what the last request did not have."""

    def __init__(self) -> None:
        self._of: object = None
        self._items, self._digest = blake2b(digest_size=DIGEST_BYTES), ""
        self._others, self._canonical = (b"", b""), b""
        """What stands around the items, as it came and as canonical JSON."""

    def of(self, asked: SplitRequest | bytes) -> str:
        if isinstance(asked, bytes):
            asked = SplitRequest(b"", (), asked, b"", None)
        if asked.name is self._of:
            return self._digest
        request, goes_on = asked.request, asked.old and asked.follows is self._of
        if not goes_on:
            self._items = blake2b(digest_size=DIGEST_BYTES)
            request = parse_object(bytes(asked))
        if isinstance(items := request.get(INPUT), list):
            # ends with a comma, so that it is the same for any number of items at a time
            self._items.update(orjson.dumps(bare_items(items), option=orjson.OPT_SORT_KEYS)[1:-1])
            self._items.update(b"," if items else b"")
        whole, others = self._items.copy(), (asked.before, asked.after)
        if not goes_on or others != self._others:
            rest = {**request, INPUT: []} if isinstance(items, list) else request
            self._others = others
            self._canonical = orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)
        whole.update(self._canonical)
        self._of, self._digest = asked.name, whole.hexdigest()
        return self._digest


def old_digest(raw: bytes) -> str:
    """The digest of a request that has LENGTH_OF_OLD digits. It goes over the whole request, and is
    found in turns that an earlier version has stored."""
    canonical = canonical_request(parse_object(raw))
    return blake2b(canonical, digest_size=LENGTH_OF_OLD // 2).hexdigest()


def _find_items(request: JsonObject, field: str) -> int:
    """Offset of the first item in the JSON of a request; 0 if it has no list of items."""
    before: JsonObject = {}
    for name, value in request.items():
        if name == field:
            is_list = isinstance(value, list)
            return len(orjson.dumps({**before, field: []})) - len("]}") if is_list else 0
        before[name] = value
    return 0


def _size(request: JsonObject, raw: bytes, start: int, field: str) -> int | None:
    """Bytes of the items that start there; None if `raw` is other JSON than we write, for example
    with a name twice: then offsets in it say nothing."""
    if not isinstance(items := request.get(field), list):
        return None
    encoded = orjson.dumps(items)
    written = orjson.dumps({**request, field: orjson.Fragment(encoded)})
    is_ours = written == raw and raw[start - 1 : start] == b"["
    return len(encoded) - len("[]") if is_ours else None
