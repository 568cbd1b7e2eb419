"""A buffer elsewhere, asked by messages of JSON, and the answers to such messages. The HTTP server
and the Ray actor answer the same messages."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

import msgspec
import orjson

from ...errors import ConfigError
from ...store.compact import INDEXES
from ...types import JsonObject
from .buffer import Buffer
from .group import BufferedGroup, GroupBatch, Settled
from .policy import BufferPolicy

MAX_WAIT_S = 20.0
"""A call that waits is answered after this time at the latest; the caller asks again."""


Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
Version = Annotated[int, msgspec.Meta(ge=INDEXES.start, le=INDEXES.stop - 1)]


class BufferRequest(msgspec.Struct, forbid_unknown_fields=True):
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
    versions: Number = 0
    best: Version | None = None


class BadMessage(ValueError):
    """A message that no buffer understands."""


async def answer(buffer: Buffer, operation: str, raw: bytes) -> bytes:
    """The reply to a message, as JSON; BadMessage says what is wrong with it."""
    if (act := OPERATIONS.get(operation)) is None:
        raise BadMessage(f"/{operation}: there are {', '.join(f'/{name}' for name in OPERATIONS)}")
    try:
        asked = msgspec.json.decode(raw or b"{}", type=BufferRequest)
        return orjson.dumps(await act(buffer, asked))
    except (msgspec.DecodeError, ValueError, TypeError, ConfigError) as error:
        raise BadMessage(f"/{operation}: {error}") from None


async def _put(buffer: Buffer, asked: BufferRequest) -> JsonObject:
    group = BufferedGroup.decode(asked.group or {})
    wait_s = min(asked.wait_s, MAX_WAIT_S)
    return {"result": await buffer.put(group, ticket=asked.ticket, timeout_s=wait_s)}


async def _get(buffer: Buffer, asked: BufferRequest) -> JsonObject:
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


async def _set_version(buffer: Buffer, asked: BufferRequest) -> JsonObject:
    if asked.version is None:
        raise ValueError("version is missing")
    await buffer.set_version(asked.version, asked.figures)
    return {}


async def _extend(buffer: Buffer, asked: BufferRequest) -> JsonObject:
    return {"number": await buffer.extend(asked.lease or asked.ticket)}


async def _describe(buffer: Buffer, asked: BufferRequest) -> JsonObject:
    return buffer.policy.model_dump(mode="json")


async def _pass_on(operation: str, buffer: Buffer, asked: BufferRequest) -> JsonObject:
    fields, reply = PASSED_ON[operation]
    given = {name: getattr(asked, name) for name in fields.split()}
    own = "_refuse" if operation == "refuse" else operation
    method: Callable[..., Awaitable[Any]] = getattr(buffer, own)
    found = await method(**given)
    return {reply: found} if reply else found


PASSED_ON = {
    "reserve": ("number owner", "tickets"),
    "release": ("tickets owner", "done"),
    "refuse": ("key reason ticket", "result"),
    "ack": ("lease keys", "keys"),
    "nack": ("lease keys requeue", "keys"),
    "list_settled": ("after number", "settled"),
    "stats": ("", ""),
    "finish": ("is_finished", "done"),
    "hold_every": ("versions", "done"),
    "let_go": ("version best", "done"),
}
"""Operation of the shelf → the fields of a message that it takes, and the name of what it returns
in the reply; without a name, that is the reply."""

ROUTES = {"list_settled": "settled"}
"""Operations whose message has another name."""

OPERATIONS: dict[str, Callable[[Buffer, BufferRequest], Awaitable[Any]]] = {
    **{ROUTES.get(name, name): partial(_pass_on, name) for name in PASSED_ON},
    "put": _put,
    "get": _get,
    "extend": _extend,
    "set_version": _set_version,
    "policy": _describe,
}
"""Name of a message, which is its route over HTTP → what it does."""


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

    async def _do(self, operation: str, **fields: Any) -> Any:
        found = await self._ask(ROUTES.get(operation, operation), **fields)
        if operation == "list_settled":
            return [Settled(**each) for each in found["settled"]]
        name = "number" if operation == "extend" else PASSED_ON.get(operation, ("", ""))[1]
        return found[name] if name else found

    async def _put(self, group: BufferedGroup, ticket: str, wait_s: float) -> str:
        head = orjson.dumps({"ticket": ticket, "wait_s": wait_s})
        raw = head[:-1] + b',"group":' + group.encode() + b"}"
        return orjson.loads(await self._send("put", raw, wait_s))["result"]

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
