"""The buffer in Redis Streams: for trainers on other machines or in other languages, and for
several collectors. Each operation is one call of a script, so it happens as a whole or not at all.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Collection
from functools import cache
from importlib.resources import files
from typing import Any

import orjson

from ...errors import ConfigError, PeerUnreachable, how_to_install
from ...types import JsonObject
from .buffer import Buffer, Figures
from .group import BufferedGroup, GroupBatch, Settled
from .policy import BufferPolicy
from .remote import check_same
from .shelf import COUNTERS, owner_of

LOOK_EVERY_S = 0.02
"""Pause between two looks of a call that waits."""


@cache
def _script() -> str:
    return files("rollout_kit.rl.buffer").joinpath("redis.lua").read_text()


class RedisBuffer(Buffer):
    """Make it with `open`. `client` is a `redis.asyncio.Redis` that returns bytes."""

    def __init__(self, client: Any, name: str, policy: BufferPolicy) -> None:
        super().__init__(policy)
        self._client = client
        self._stream = f"{{rollout_kit:{name}}}"  # braces keep its keys on one node of a cluster
        self._run = client.register_script(_script())

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
        except ImportError:
            raise ConfigError(
                f"{where} needs redis: {how_to_install('rollout-kit[redis]')}"
            ) from None
        try:
            buffer = cls(Redis.from_url(url), name, policy)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        try:
            raw = await buffer._call("open", policy.model_dump_json(), secrets.token_hex(8))
            buffer.policy = BufferPolicy.model_validate_json(raw)
            check_same(buffer.policy, asked, where)
        except BaseException:
            await buffer.close()
            raise
        return buffer

    async def clear(self) -> None:
        """Remove the buffer with everything in it."""
        names = ("state", "known", "meta", "waiting", "tickets", "left", "dead", "lags", "dropped")
        await self._client.delete(self._stream, *(f"{self._stream}:{each}" for each in names))

    async def close(self) -> None:
        await self._client.aclose()

    async def reserve(self, number: int = 1, *, owner: str = "") -> list[str]:
        return _texts(await self._call("reserve", number, f"{owner}:{secrets.token_hex(8)}"))

    async def release(self, tickets: Collection[str] = (), *, owner: str = "") -> None:
        await self._call("release", owner, *tickets)

    async def ack(self, lease: str, keys: Collection[str] | None = None) -> list[str]:
        if keys is not None and not keys:
            return []
        return _texts(await self._call("ack", lease, *(keys or ())))

    async def nack(
        self, lease: str, keys: Collection[str] | None = None, *, requeue: bool = True
    ) -> list[str]:
        if keys is not None and not keys:
            return []
        return _texts(await self._call("nack", lease, int(requeue), *(keys or ())))

    async def extend(self, lease: str) -> int:
        return await self._call("extend", lease)

    async def set_version(self, version: int, figures: Figures | None = None) -> None:
        await self._call("set_version", version, orjson.dumps(dict(figures or {})))

    async def list_settled(self, after: str = "", number: int = 1000) -> list[Settled]:
        found = await self._call("settled", after, number)
        return [
            Settled(
                number.decode(), key.decode(), reason.decode(), int(version) if version else None
            )
            for number, key, reason, version in found
        ]

    async def stats(self) -> JsonObject:
        found = await self._call("stats")
        state, dropped, lags, waiting, total, reserved, dead, oldest, leases = found
        if not (known := _pairs(state)):
            raise self._lost()
        version = int(known["version"]) if "version" in known else None
        base, acked, uses = (int(known.get(name, 0)) for name in ("base", "acked_since", "uses"))
        return {
            "id": known["identity"],
            **{name: int(known.get(name, 0)) for name in COUNTERS},
            "dropped": {name: int(number) for name, number in _pairs(dropped).items()},
            "waiting": waiting,
            "leased": total - waiting,
            "owners": _count_owners(leases),
            "reserved": reserved,
            "room": self.policy.room(version, base, acked, uses),
            "bytes": int(known.get("bytes", 0)),
            "version": version,
            "figures": orjson.loads(known.get("figures", "{}")),
            "staleness": {lag: int(number) for lag, number in _pairs(lags).items()},
            "oldest_s": float(oldest) if oldest else None,
            "dead": _texts(dead)[::-1],
            "finished": known.get("finished") == "1",
        }

    async def finish(self, is_finished: bool = True) -> None:
        await self._call("finish", int(is_finished))

    async def _put(self, group: BufferedGroup, ticket: str, wait_s: float) -> str:
        of = "" if group.version_first is None else group.version_first
        raw, ends = group.encode(self.policy.reference_bytes), self.clock() + wait_s
        while True:
            found = (await self._call("put", group.key, of, ticket, raw)).decode()
            if found != "full" or self.policy.on_full != "block":
                return found
            while not await self._call("has_room", len(raw)):  # cheaper than another put
                if self.clock() >= ends:
                    return found
                await asyncio.sleep(LOOK_EVERY_S)

    async def _refuse(self, key: str, reason: str, ticket: str) -> str:
        return (await self._call("refuse", key, reason, ticket)).decode()

    async def _get(
        self, number: int, least: int, staleness: int | None, wait_s: float, owner: str
    ) -> tuple[GroupBatch | None, bool]:
        lease = f"{owner}:{secrets.token_hex(8)}"
        bound = "" if staleness is None else staleness
        is_over, version, *bodies = await self._call("get", number, least, bound, lease)
        if not bodies:
            return None, bool(is_over)
        try:
            groups = [BufferedGroup.fetch(body) for body in bodies]
        except ConfigError:  # another consumer may be able to read them
            await self.nack(lease)
            raise
        return GroupBatch(lease, groups, int(version) if version != b"" else None), False

    async def _wait_for_change(self, wait_s: float) -> None:
        await asyncio.sleep(min(LOOK_EVERY_S, wait_s))

    async def _call(self, operation: str, *values: Any) -> Any:
        from redis import exceptions

        try:
            return await self._run(keys=[self._stream], args=[operation, *values])
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            raise PeerUnreachable(f"the buffer in Redis: {error}") from error
        except exceptions.ResponseError as error:
            if "nil" in str(error) or "NOGROUP" in str(error):
                raise self._lost() from error
            raise

    def _lost(self) -> PeerUnreachable:
        text = f"the buffer {self._stream} is not in Redis any more: open it again"
        return PeerUnreachable(text, retryable=False)


def _count_owners(leases: list[Any]) -> dict[str, int]:
    """Owner → groups that it holds, of pairs of a lease and its number."""
    found: Counter[str] = Counter()
    for lease, number in leases:
        if owner := owner_of(lease.decode()):
            found[owner] += int(number)
    return dict(found)


def _texts(values: Any) -> list[str]:
    return [value.decode() for value in values or ()]


def _pairs(values: list[bytes]) -> dict[str, str]:
    texts = _texts(values)
    return dict(zip(texts[::2], texts[1::2], strict=True))
