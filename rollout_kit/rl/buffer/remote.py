"""A buffer elsewhere, asked by messages of JSON, and the answers to such messages. The HTTP server
and the Ray actor answer the same messages."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection
from typing import Annotated, Any

import msgspec
import orjson

from ...errors import ConfigError
from ...store.compact import INDEXES
from ...types import JsonObject
from .buffer import Buffer, Figures
from .group import BufferedGroup, GroupBatch, Settled
from .policy import BufferPolicy

MAX_WAIT_S = 20.0
"""A call that waits is answered after this time at the latest; the caller asks again."""


Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
Version = Annotated[int, msgspec.Meta(ge=INDEXES.start, le=INDEXES.stop - 1)]


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """A message to a buffer. Each operation reads the fields that concern it."""

    number: Number = 1
    at_least: int | None = None
    max_staleness: int | None = None
    wait_s: float = 0.0
    group: JsonObject | None = None
    ticket: str = ""
    tickets: list[str] = []
    owner: str = ""
    key: str = ""
    reason: str = ""
    lease: str = ""
    keys: list[str] | None = None
    requeue: bool = True
    version: Version | None = None
    figures: dict[str, float | None] = {}
    after: str = ""
    is_finished: bool = True


class BadMessage(ValueError):
    """A message that no buffer understands."""


async def answer(buffer: Buffer, operation: str, raw: bytes) -> bytes:
    """The reply to a message, as JSON; BadMessage says what is wrong with it."""
    if (act := OPERATIONS.get(operation)) is None:
        raise BadMessage(f"/{operation}: there are {', '.join(f'/{name}' for name in OPERATIONS)}")
    try:
        asked = msgspec.json.decode(raw or b"{}", type=Asked)
        return orjson.dumps(await act(buffer, asked))
    except (msgspec.DecodeError, ValueError, TypeError, ConfigError) as error:
        raise BadMessage(f"/{operation}: {error}") from None


async def _put(buffer: Buffer, asked: Asked) -> JsonObject:
    group = BufferedGroup.decode(asked.group or {})
    wait_s = min(asked.wait_s, MAX_WAIT_S)
    return {"result": await buffer.put(group, ticket=asked.ticket, timeout_s=wait_s)}


async def _refuse(buffer: Buffer, asked: Asked) -> JsonObject:
    return {"result": await buffer._refuse(asked.key, asked.reason, asked.ticket)}


async def _get(buffer: Buffer, asked: Asked) -> JsonObject:
    batch = await buffer.get(
        asked.number,
        at_least=asked.at_least,
        max_staleness=asked.max_staleness,
        timeout_s=min(asked.wait_s, MAX_WAIT_S),
        owner=asked.owner,
    )
    is_over = (
        batch is None
        and (stats := await buffer.stats())["finished"]
        and not (stats["waiting"] or stats["leased"])
    )
    return {"batch": batch, "finished": is_over}


async def _set_version(buffer: Buffer, asked: Asked) -> JsonObject:
    if asked.version is None:
        raise ValueError("version is missing")
    await buffer.set_version(asked.version, asked.figures)
    return {}


async def _nack(buffer: Buffer, asked: Asked) -> JsonObject:
    return {"keys": await buffer.nack(asked.lease, asked.keys, requeue=asked.requeue)}


async def _list_settled(buffer: Buffer, asked: Asked) -> JsonObject:
    return {"settled": await buffer.list_settled(asked.after, asked.number)}


async def _plain(done: Awaitable[Any], name: str = "done") -> JsonObject:
    return {name: await done}


OPERATIONS: dict[str, Callable[[Buffer, Asked], Awaitable[Any]]] = {
    "reserve": lambda buffer, asked: _plain(
        buffer.reserve(asked.number, owner=asked.owner), "tickets"
    ),
    "release": lambda buffer, asked: _plain(buffer.release(asked.tickets, owner=asked.owner)),
    "put": _put,
    "refuse": _refuse,
    "get": _get,
    "ack": lambda buffer, asked: _plain(buffer.ack(asked.lease, asked.keys), "keys"),
    "nack": _nack,
    "extend": lambda buffer, asked: _plain(buffer.extend(asked.lease or asked.ticket), "number"),
    "set_version": _set_version,
    "settled": _list_settled,
    "stats": lambda buffer, asked: buffer.stats(),
    "finish": lambda buffer, asked: _plain(buffer.finish(asked.is_finished)),
    "policy": lambda buffer, asked: _describe(buffer),
}
"""Name of an operation, which is its route over HTTP → what it does."""


async def _describe(buffer: Buffer) -> JsonObject:
    return buffer.policy.model_dump(mode="json")


class RemoteBuffer(Buffer):
    """Sends each operation elsewhere; the waiting happens there. Its policy is that of the other
    side, and a `policy` that is given must not differ."""

    async def connect(self, asked: dict[str, Any], where: str) -> None:
        """Take over the policy of the other side; ConfigError where it differs from the asked."""
        found = await self._ask("policy")
        self.policy = BufferPolicy.parse(found, where)
        check_same(self.policy, asked, where)

    @abstractmethod
    async def _send(self, operation: str, raw: bytes, wait_s: float) -> bytes:
        """The reply to a message."""

    async def _ask(self, operation: str, wait_s: float = 0.0, /, **fields: Any) -> Any:
        return orjson.loads(await self._send(operation, orjson.dumps(fields), wait_s))

    async def reserve(self, number: int = 1, *, owner: str = "") -> list[str]:
        return (await self._ask("reserve", number=number, owner=owner))["tickets"]

    async def release(self, tickets: Collection[str] = (), *, owner: str = "") -> None:
        await self._ask("release", tickets=list(tickets), owner=owner)

    async def ack(self, lease: str, keys: Collection[str] | None = None) -> list[str]:
        keys = None if keys is None else list(keys)
        return (await self._ask("ack", lease=lease, keys=keys))["keys"]

    async def nack(
        self, lease: str, keys: Collection[str] | None = None, *, requeue: bool = True
    ) -> list[str]:
        keys = None if keys is None else list(keys)
        return (await self._ask("nack", lease=lease, keys=keys, requeue=requeue))["keys"]

    async def extend(self, lease: str) -> int:
        return (await self._ask("extend", lease=lease))["number"]

    async def set_version(self, version: int, figures: Figures | None = None) -> None:
        await self._ask("set_version", version=version, figures=dict(figures or {}))

    async def list_settled(self, after: str = "", number: int = 1000) -> list[Settled]:
        found = await self._ask("settled", after=after, number=number)
        return [Settled(**each) for each in found["settled"]]

    async def stats(self) -> JsonObject:
        return await self._ask("stats")

    async def finish(self, is_finished: bool = True) -> None:
        await self._ask("finish", is_finished=is_finished)

    async def _put(self, group: BufferedGroup, ticket: str, wait_s: float) -> str:
        head = orjson.dumps({"ticket": ticket, "wait_s": wait_s})
        raw = head[:-1] + b',"group":' + group.encode() + b"}"
        return orjson.loads(await self._send("put", raw, wait_s))["result"]

    async def _refuse(self, key: str, reason: str, ticket: str) -> str:
        return (await self._ask("refuse", key=key, reason=reason, ticket=ticket))["result"]

    async def _get(
        self, number: int, least: int, staleness: int | None, wait_s: float, owner: str
    ) -> tuple[GroupBatch | None, bool]:
        fields = {"number": number, "at_least": least, "max_staleness": staleness, "owner": owner}
        found = await self._ask("get", wait_s, **fields, wait_s=wait_s)
        if (batch := found["batch"]) is None:
            return None, found["finished"]
        groups = [BufferedGroup.decode(each) for each in batch["groups"]]
        return GroupBatch(batch["lease"], groups, batch["version"]), False

    async def _wait_for_change(self, wait_s: float) -> None:
        await asyncio.sleep(0)  # the other side has waited


def check_same(policy: BufferPolicy, asked: dict[str, Any], where: str) -> None:
    """ConfigError if the buffer has another policy than the one that is asked for."""
    wanted = BufferPolicy.parse({**policy.model_dump(), **asked}, where)
    differing = [
        f"{name}={getattr(policy, name)}, not {getattr(wanted, name)}"
        for name in BufferPolicy.model_fields
        if getattr(policy, name) != getattr(wanted, name)
    ]
    if differing:
        raise ConfigError(
            f"{where}: this buffer exists with {'; '.join(differing)}: ask for the same, or take"
            " another name"
        )
