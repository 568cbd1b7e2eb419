"""The buffer as an actor of a Ray cluster. The actor lives until it is killed, so collectors and
trainers can come and go; what it holds ends with it."""

import asyncio
from typing import Any

from ...collecting.cluster.ray_cluster import describe_refusal
from ...errors import ConfigError, PeerLost, how_to_install
from .policy import BufferPolicy
from .remote import BadMessage, RemoteBuffer

NAMESPACE = "rollout_kit"


class Keeper:
    """The actor: a buffer in memory, and the answers to messages."""

    def __init__(self, policy: dict[str, Any]) -> None:
        from .memory import MemoryBuffer

        self._buffer = MemoryBuffer(BufferPolicy.parse(policy))

    async def answer(self, operation: str, raw: bytes) -> bytes | str:
        """The reply; a text says what is wrong with the message."""
        from .remote import answer

        try:
            return await answer(self._buffer, operation, raw)
        except BadMessage as error:
            return str(error)


class RayBuffer(RemoteBuffer):
    """Make it with `open`."""

    def __init__(self, ray: Any, actor: Any) -> None:
        super().__init__(BufferPolicy())
        self._ray, self._actor = ray, actor

    @classmethod
    async def open(
        cls, address: str, name: str, asked: dict[str, Any], *, spelled: str = ""
    ) -> "RayBuffer":
        """The buffer of this name in the cluster at `address`, or in the one that this process is
        connected to; it is made if there is none."""
        where = spelled or f"ray://{address}/{name}"
        try:
            import ray  # pyright: ignore[reportMissingImports]
            from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ConfigError(f"{where} needs Ray: {how_to_install('rollout-kit[ray]')}") from None
        policy = BufferPolicy.parse(asked, where)
        try:
            if not ray.is_initialized():
                quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
                await asyncio.to_thread(ray.init, address=address or "auto", **quiet)
            made = ray.remote(Keeper).options(
                name=name,
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_concurrency=1000,
            )
            actor = await asyncio.to_thread(made.remote, policy.model_dump(mode="json"))
        except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
            reason = describe_refusal(error)
            raise ConfigError(f"{where}: the Ray cluster cannot be used: {reason}") from None
        buffer = cls(ray, actor)
        await buffer.connect(asked, where)
        return buffer

    async def clear(self) -> None:
        """End the actor, with everything in it."""
        await asyncio.to_thread(self._ray.kill, self._actor)

    async def _send(self, operation: str, raw: bytes, wait_s: float) -> bytes:
        try:
            reply = await self._actor.answer.remote(operation, raw)
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise PeerLost(f"the buffer in Ray: {reason}") from error
        if isinstance(reply, str):
            raise ConfigError(reply)
        return reply
