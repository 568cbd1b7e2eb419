"""What commands ask the head server of a running `ng_run`."""

import asyncio
import hmac
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import orjson
import yaml

from ..config.keys import HeadServerConfig
from ..errors import ConfigError, PeerError
from ..serving.transport.access import bearer
from ..serving.transport.http import HttpClient, Reply
from ..types import JsonObject
from .run import read_token

IDENTITY = "rollout_kit head server"
"""Name by which a command recognizes a head server."""

CONFIG, STOP, INSTANCES = "/global_config_dict_yaml", "/stop", "/server_instances"

NONCE, ADDRESS = "x-rollout-nonce", "x-rollout-address"

OTHER_PLACE = "for one at another place add +head_server.port=…"
"""What to do where no ng_run answers."""

NEEDS_TOKEN = (
    "needs its token: run this command as the user who started it, or give both the same auth_token"
    " in env.yaml"
)

ASK_S = 10.0
"""Time limit of a request to a head server."""


def proof_of(token: str, nonce: str, address: str) -> str:
    return hmac.new(token.encode(), f"{nonce} {address}".encode(), "sha256").hexdigest()


def spell_address(address: tuple[str, int] | None) -> str:
    return f"{address[0]} {address[1]}" if address else ""


@dataclass(frozen=True, slots=True)
class HeadClient:
    """A client of a running `ng_run`'s head server."""

    url: str
    run_id: str
    status: str
    token: str
    client: HttpClient

    @classmethod
    async def at(
        cls,
        where: HeadServerConfig,
        client: HttpClient,
        token: str | None,
        advice: str = OTHER_PLACE,
    ) -> "HeadClient":
        """Find the head server; ConfigError with `advice` if there is none. Without `token`, read
        it from the user's token file. It is sent only to a server that has proved to know it."""
        problem: ConfigError | None = None
        stranger: HeadClient | None = None
        for address in await _resolve(where):
            try:
                found = await cls._greet(address, where, client, token, advice)
            except ConfigError as error:
                problem = problem or error
                continue
            if found.token:
                return found
            stranger = stranger or found
        if stranger is None:
            raise problem or ConfigError(f"no ng_run answers at {where.host}:{where.port}")
        return stranger

    @classmethod
    async def _greet(
        cls,
        address: tuple[str, int],
        where: HeadServerConfig,
        client: HttpClient,
        token: str | None,
        advice: str,
    ) -> "HeadClient":
        """The head server at one address of its host; without the token if it proves nothing."""
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        url, shown = f"http://{host}:{address[1]}", f"http://{where.host}:{where.port}"
        nonce = secrets.token_hex(16)
        asked = {NONCE: nonce, ADDRESS: spell_address(address)}
        try:
            reply = await client.get(f"{url}/health", headers=asked, timeout_s=ASK_S)
        except PeerError as error:
            raise ConfigError(f"no ng_run answers at {shown} ({error.message}): {advice}") from None
        hello = _read(reply)
        if not isinstance(hello, dict) or hello.get("service") != IDENTITY:
            raise ConfigError(f"the server at {shown} is another program, not an ng_run: {advice}")
        run_id, proof = str(hello.get("run_id")), str(hello.get("proof"))
        token = token or read_token(run_id, url)
        if not hmac.compare_digest(proof, proof_of(token, nonce, spell_address(address))):
            token = ""
        return cls(url, run_id, str(hello.get("status")), token, client)

    async def instances(self) -> list[JsonObject]:
        """One entry per server, as `/server_instances` lists them; ConfigError while it starts."""
        if self.status == "starting":
            raise ConfigError(
                f"the ng_run at {self.url} is still starting its servers: wait until it says that"
                " all are ready"
            )
        listed = await self._ask(INSTANCES)
        if not _is_a_list_of(listed, LISTED):
            raise ConfigError(f"the ng_run at {self.url} lists its servers in an unknown format")
        return listed

    async def values(self) -> JsonObject:
        """The configuration of the run, with secrets masked; only for those who have its token."""
        if not self.token:
            raise ConfigError(f"the ng_run at {self.url} {NEEDS_TOKEN}")
        text = await self._ask(CONFIG)
        found = yaml.safe_load(text) if isinstance(text, str) else None
        return found if isinstance(found, dict) else {}

    async def stop(self) -> None:
        """Ask the run to stop; return when it has accepted."""
        self.check(await self.post(STOP, b"{}"))

    async def answers(self) -> bool:
        """Whether the same run still answers."""
        try:
            hello = _read(await self.client.get(f"{self.url}/health", timeout_s=ASK_S))
        except PeerError:
            return False
        return isinstance(hello, dict) and hello.get("run_id") == self.run_id

    async def get(self, path: str) -> Reply:
        url, headers = f"{self.url}{path}", bearer(self.token)
        return await self.client.get(url, headers=headers, timeout_s=ASK_S)

    async def post(self, path: str, raw: bytes) -> Reply:
        url, headers = f"{self.url}{path}", bearer(self.token)
        return await self.client.post(url, raw, headers=headers, timeout_s=ASK_S)

    async def _ask(self, path: str) -> Any:
        return _read(self.check(await self.get(path)))

    def check(self, reply: Reply) -> Reply:
        """The reply; ConfigError if it is a refusal."""
        if reply.status == 401:
            raise ConfigError(f"the ng_run at {self.url} {NEEDS_TOKEN}")
        if reply.status != 200:
            raise ConfigError(f"the ng_run at {self.url} answered {reply.status}: {reply.text()}")
        return reply


async def _resolve(where: HeadServerConfig) -> list[tuple[str, int]]:
    """The addresses of a head server's host."""
    loop = asyncio.get_running_loop()
    host = where.host.strip("[]")
    try:
        found = await loop.getaddrinfo(host, where.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"head_server.host={where.host}: no such host ({error.strerror})"
        ) from None
    return list(dict.fromkeys((str(each[4][0]), int(each[4][1])) for each in found))


@asynccontextmanager
async def found_head(
    where: HeadServerConfig, token: str | None, advice: str = OTHER_PLACE
) -> AsyncIterator[HeadClient]:
    """Context with a client of the ng_run at a place; ConfigError with `advice` if there is
    none."""
    client = HttpClient()
    try:
        yield await HeadClient.at(where, client, token, advice)
    finally:
        await client.close()


LISTED = frozenset(
    ["name", "server_type", "implementation", "urls", "state", "asks_token", "workers"]
)


def _is_a_list_of(found: Any, keys: frozenset[str]) -> bool:
    return isinstance(found, list) and all(
        isinstance(each, dict) and keys <= each.keys() for each in found
    )


def _read(reply: Reply) -> Any:
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(reply.raw)
