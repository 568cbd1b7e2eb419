"""The buffer in Redis: for trainers on other machines or in other processes, and for several
collectors.

Redis holds a log of the operations, a stream, and the contents of the groups. Each client applies
the whole log to a `Shelf` of its own, so all clients have the same state. The result of an
operation is what it gives at its place in the log. It is there as a whole, with the content of its
group, or not at all, whatever is killed. Its time is that of its entry, so no clock but that of
Redis counts. A snapshot of the state replaces the start of the log from time to time.
"""

import asyncio
import secrets
from copy import copy
from dataclasses import dataclass, field
from random import random
from typing import Any

import orjson

from ...errors import ConfigError, PeerUnreachable, how_to_install
from ...types import JsonObject
from .buffer import Buffer
from .group import BufferedGroup, GroupBatch
from .policy import BufferPolicy
from .remote import check_same
from .shelf import NAMING, RULES, Shelf, Taken

LOOK_EVERY_S = 0.02
"""Pause between two looks of a call that waits."""

PAUSES_S = (0.1, 0.5, 2.0)
"""Pauses before the tries to reach Redis again."""

MIN_LOG = 10_000
"""Operations in the log before a snapshot replaces them. There are at least as many as the snapshot
has keys of finished groups, so that writing it costs less than the operations."""

READING = frozenset({"list_settled", "stats"})
"""Operations that change nothing, and are not in the log."""

START = "0-0"

Place = tuple[int, int]
"""The id of a log's entry: its milliseconds, and its number among those of the same."""


@dataclass(slots=True, eq=False)
class _Operation:
    """One that waits for its result; without `raw` it only looks what others have done."""

    token: str
    raw: bytes
    group: bytes | None
    result: asyncio.Future[Any] = field(default_factory=asyncio.Future)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one lease was given: the names of the contents of its groups."""

    lease: str
    contents: list[str]
    version: int | None


class RedisBuffer(Buffer):
    """Make it with `open`. `client` is a `redis.asyncio.Redis` that returns bytes."""

    def __init__(self, client: Any, name: str, policy: BufferPolicy) -> None:
        super().__init__(policy)
        self._client = client
        self._stem = f"{{rollout_kit:{name}}}"  # braces keep its keys on one node of a cluster
        self._head = f"{self._stem}:head"
        self._raw_head = b""
        self._queue: list[_Operation] = []
        self._sending: asyncio.Task[None] | None = None
        self._waiting: dict[str, _Operation] = {}
        """Token of an operation → the operation of this client, while it is not in the log."""
        self._now, self._place, self._log_size, self._max_log = 0.0, START, 0, MIN_LOG
        self._tokens: dict[str, str] = {}
        """Key of a group → name of its content."""
        self._spare: list[str] = []
        """Contents that this client has to remove."""

    @classmethod
    async def open(
        cls, url: str, name: str, asked: dict[str, Any], *, spelled: str = ""
    ) -> "RedisBuffer":
        """The buffer of this name; the first one who opens it decides on its policy."""
        where = spelled or url
        policy = BufferPolicy.parse(asked, where)
        if policy.order != "fifo":
            raise ConfigError(f"{where}: order={policy.order}: Redis Streams have order=fifo only")
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError:
            raise ConfigError(
                f"{where} needs redis: {how_to_install('rollout-kit[redis]')}"
            ) from None
        try:
            # an operation that is sent again might be done twice: `_exchange` looks before
            buffer = cls(Redis.from_url(url, retry=Retry(NoBackoff(), 0)), name, policy)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        try:
            await buffer._reach(buffer._begin, where)
            check_same(buffer.policy, asked, where)
        except BaseException:
            await buffer.close()
            raise
        return buffer

    async def _begin(self, where: str) -> None:
        """Open the buffer that there is, or a new one."""
        identity = secrets.token_hex(8)
        policy = self.policy.model_dump(mode="json")
        head = {"identity": identity, "rules": RULES, "policy": policy, "start": START}
        async with self._client.pipeline() as pipe:
            pipe.xadd(self._key("log", identity), {b"": b""})  # nothing is added where no log is
            pipe.set(self._head, orjson.dumps(head), nx=True)
            pipe.get(self._head)
            *_, self._raw_head = await pipe.execute()
        found = orjson.loads(self._raw_head)
        if found["identity"] != identity:
            await self._client.delete(self._key("log", identity))
        if found["rules"] != RULES:
            raise ConfigError(
                f"{where}: this buffer is of another version of rollout_kit: use the same version"
                " everywhere, or take another name"
            )
        self.policy = BufferPolicy.model_validate(found["policy"])
        self.identity = found["identity"]
        self._stream, self._groups = self._key("log"), self._key("groups")
        await self._load()
        await self._catch_up([])

    def _key(self, name: str, identity: str = "") -> str:
        """A key of this buffer, and of no other one that has or had its name."""
        return f"{self._stem}:{identity or self.identity}:{name}"

    async def clear(self) -> None:
        """Remove the buffer with everything in it."""
        await self._client.delete(self._head, self._stream, self._groups, self._key("state"))

    async def close(self) -> None:
        if self._sending:
            await self._sending
        await self._client.aclose()

    async def _put(self, group: BufferedGroup, ticket: str, wait_s: float) -> str:
        raw, ends = group.encode(self.policy.reference_bytes), self.clock() + wait_s
        head = {"key": group.key, "version": group.version_first, "size": len(raw)}
        head["last"] = group.version_last
        while True:
            found = await self._log("put", {**head, "ticket": ticket}, raw)
            if found != "full" or self.policy.on_full != "block":
                return found
            while not self._shelf.has_room(len(raw), ticket):  # the content is not sent again
                if self.clock() >= ends:
                    return found
                await asyncio.sleep(LOOK_EVERY_S)
                await self._look()

    async def _get(
        self, number: int, least: int, staleness: int | None, wait_s: float, owner: str
    ) -> tuple[GroupBatch | None, bool]:
        if not self._shelf.has_work(least, staleness):
            await self._look()
        taken: _Taken | None = None
        if self._shelf.has_work(least, staleness):  # or what waits would fill the log
            asked = {"number": number, "least": least, "staleness": staleness, "owner": owner}
            taken = await self._log("take", asked)
        if taken is None:
            return None, self._shelf.is_finished and not len(self._shelf)
        raws = await self._reach(self._client.hmget, self._groups, taken.contents)
        try:  # a group that has left since then has no content
            groups = [BufferedGroup.fetch(raw) for raw in raws if raw is not None]
        except ConfigError:  # another consumer may be able to read them
            await self.nack(taken.lease)
            raise
        return GroupBatch(taken.lease, groups, taken.version) if groups else None, False

    async def _wait_for_change(self, wait_s: float) -> None:
        await asyncio.sleep(min(LOOK_EVERY_S, wait_s))

    async def _look(self) -> None:
        """Learn what others have done."""
        await self._queue_up(_Operation("", b"", None))

    async def _do(self, operation: str, **fields: Any) -> Any:
        if operation in READING:
            await self._look()
            return getattr(self._shelf, operation)(**fields)
        return await self._log(operation, fields)

    async def _log(self, name: str, fields: JsonObject, content: bytes | None = None) -> Any:
        """The result of an operation of the shelf, when it is in the log; `content` is that of its
        group."""
        token = secrets.token_hex(8)
        return await self._queue_up(_Operation(token, orjson.dumps([token, name, fields]), content))

    async def _queue_up(self, operation: _Operation) -> Any:
        self._queue.append(operation)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        return await operation.result

    async def _send(self) -> None:
        """Send what is queued, all of it at a time; what comes meanwhile follows together."""
        while self._queue:
            batch, self._queue = self._queue, []
            batch = [each for each in batch if not each.result.done()]  # its caller has gone
            self._waiting = {each.token: each for each in batch if each.raw}
            try:
                await self._exchange(batch)
            except Exception as error:
                for each in batch:
                    if not each.result.done():
                        each.result.set_exception(copy(error))

    async def _exchange(self, batch: list[_Operation]) -> None:
        is_again = False
        for pause_s in (*PAUSES_S, None):
            try:
                if is_again:  # what is in the log is not sent again
                    await self._reach(self._catch_up, [])
                await self._reach(self._catch_up, batch)
                break
            except PeerUnreachable as error:
                if pause_s is None or not error.retryable:
                    raise
                is_again = True
            await asyncio.sleep(pause_s)
        for each in batch:
            if not each.result.done() and each.raw:
                raise PeerUnreachable("the buffer in Redis: a snapshot hides what was done")

    async def _reach(self, call: Any, *values: Any) -> Any:
        from redis import exceptions

        try:
            return await call(*values)
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            raise PeerUnreachable(f"the buffer in Redis: {error}") from error

    async def _catch_up(self, batch: list[_Operation]) -> None:
        """Add operations to the log, and apply what is new in it."""
        spare = self._spare
        async with self._client.pipeline() as pipe:
            if spare:
                pipe.hdel(self._groups, *spare)
            for each in batch:
                if each.raw and not each.result.done():
                    if each.group is not None:
                        pipe.hset(self._groups, each.token, each.group)
                    pipe.xadd(self._stream, {b"": each.raw}, nomkstream=True)
            pipe.xrange(self._stream, f"({self._place}")
            pipe.get(self._head)
            pipe.time()
            *_, entries, head, (seconds, micros) = await pipe.execute()
        self._spare = self._spare[len(spare) :]
        self._check(head)
        if _place_of(orjson.loads(head)["start"]) > _place_of(self._place):
            await self._load()  # a snapshot has replaced entries that this client has not seen
            entries = await self._client.xrange(self._stream, f"({self._place}")
        for place, fields in entries:
            self._apply(place.decode(), fields[b""])
        self._now = max(self._now, seconds + micros / 1e6)
        for each in batch:
            if not each.raw and not each.result.done():
                each.result.set_result(None)
        if self._log_size > self._max_log:
            await self._shorten_log()

    def _check(self, head: bytes | None) -> None:
        if head is None or orjson.loads(head)["identity"] != self.identity:
            text = f"the buffer {self._stem} is not in Redis any more: open it again"
            raise PeerUnreachable(text, retryable=False)
        self._raw_head = head

    def _apply(self, place: str, raw: bytes) -> None:
        self._place, self._log_size = place, self._log_size + 1
        self._now = _place_of(place)[0] / 1000  # the same for all clients
        if not raw:
            return
        token, name, fields = orjson.loads(raw)
        own, num_spare = self._waiting.pop(token, None), len(self._spare)
        if name == "put":
            versions = fields["version"], fields.get("last")
            group = BufferedGroup(fields["key"], [], [], *versions)
            found = self._shelf.put(group, fields["size"], fields["ticket"])
            if found == "ok":
                self._tokens[group.key] = token
            else:
                self._spare.append(token)
        else:
            named = {"token": token} if name in NAMING else {}
            found = getattr(self._shelf, name)(**fields, **named)
            if own and isinstance(found, Taken):
                contents = [self._tokens[each.group.key] for each in found.entries]
                found = _Taken(found.lease, contents, found.version)
        if own is None:  # who did it removes what is not needed any more
            del self._spare[num_spare:]
        elif not own.result.done():
            own.result.set_result(found)

    def _note(self, change: str, *values: Any) -> None:
        if change == "left" and (token := self._tokens.pop(values[0], None)):
            self._spare.append(token)

    async def _load(self) -> None:
        """Begin with the latest snapshot."""
        self._shelf = Shelf(self.policy, lambda: self._now, self._note)
        self._shelf.identity, self._place, self._tokens = self.identity, START, {}
        if raw := await self._client.get(self._key("state")):
            state = orjson.loads(raw)
            self._shelf.restore(state["shelf"])
            self._place, self._tokens = state["place"], state["tokens"]
        self._now = _place_of(self._place)[0] / 1000
        self._set_limit()

    def _set_limit(self) -> None:
        """Not the same for all clients, as one of them is enough to shorten the log."""
        self._log_size = 0
        self._max_log = int(max(MIN_LOG, len(self._shelf.known)) * (1 + random()))

    async def _shorten_log(self) -> None:
        """Replace the log with a snapshot, unless another client does; remove contents that killed
        clients have left."""
        from redis.exceptions import WatchError

        self._set_limit()
        contents = await self._client.hkeys(self._groups)
        await self._catch_up([])
        needed = set(self._tokens.values())
        self._spare += {each.decode() for each in contents} - needed
        state = {"place": self._place, "tokens": self._tokens, "shelf": self._shelf.save()}
        head = {**orjson.loads(self._raw_head), "start": self._place}
        async with self._client.pipeline() as pipe:
            await pipe.watch(self._head)
            if await pipe.get(self._head) != self._raw_head:
                return
            pipe.multi()
            pipe.set(self._key("state"), orjson.dumps(state))
            pipe.set(self._head, orjson.dumps(head))
            pipe.xtrim(self._stream, minid=self._place)
            try:
                await pipe.execute()
            except WatchError:
                return


def _place_of(text: str) -> Place:
    milliseconds, _, number = text.partition("-")
    return int(milliseconds), int(number)
