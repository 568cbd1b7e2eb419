"""Tokens of Entra ID: where they come from, and a new one before the old one expires."""

import asyncio
import base64
import shlex
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

import orjson

from rollout_kit.endpoints.refusals import parsed
from rollout_kit.errors import ModelError

SCOPE = "https://cognitiveservices.azure.com/.default"
"""What a token must be for."""

MARGIN_S = 300.0
"""A token is renewed so long before it expires: clocks differ, and requests take their time."""

PAUSE_S = 30.0
"""Between two requests for a new token, while the old one will do or was given only now."""

COMMAND_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Token:
    """`expires_at` is Unix time; infinity where nobody tells."""

    value: str
    expires_at: float = inf


Source = Callable[[], Awaitable[Token]]
"""Another token; ModelError where there is none."""


class Tokens:
    """One for everybody, renewed once for all."""

    def __init__(self, source: Source, now: Callable[[], float] = time.time) -> None:
        self._source = source
        self._now = now
        self._token: Token | None = None
        self._asked_at = -inf
        self._lock = asyncio.Lock()

    @property
    def known(self) -> tuple[str, ...]:
        return (self._token.value,) if self._token else ()

    async def current(self) -> str:
        """One that has not expired."""
        token = self._token
        if token is None or self._now() > token.expires_at - MARGIN_S:
            token = await self._another(token)
        return token.value

    async def renew_headers(self, refused: str) -> bool:
        """Whether there is another than the one that was refused."""
        token = self._token
        if token is None or token.value == refused:
            token = await self._another(token)
        return token.value != refused

    async def _another(self, old: Token | None) -> Token:
        async with self._lock:
            if self._token is not None and self._token is not old:
                return self._token  # somebody has asked meanwhile
            holds = old if old and self._now() < old.expires_at else None
            if holds and self._now() - self._asked_at < PAUSE_S:
                return holds
            self._asked_at = self._now()
            try:
                self._token = await self._source()
            except ModelError:
                if holds is None:
                    raise
                return holds
            return self._token


def fixed(value: str) -> Source:
    """One that was given once and for all."""

    async def source() -> Token:
        return Token(value)

    return source


def of_command(command: str) -> Source:
    """What a command prints: the token, or JSON as `az account get-access-token` prints it."""

    async def source() -> Token:
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise _failed(command, f"cannot be run: {reason}", retryable=False) from None
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                out, err = await process.communicate()
        except TimeoutError:
            raise _failed(command, f"did not end within {COMMAND_TIMEOUT_S:g} s") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        if process.returncode:
            last = (err.decode(errors="replace").strip() or "nothing").splitlines()[-1]
            raise _failed(command, f"ended with status {process.returncode}, and said: {last}")
        if not out.strip():
            raise _failed(command, "printed no token")
        return read(out)

    return source


async def of_identity() -> Token:
    """Of whom azure-identity finds: the environment, a managed identity, `az login`, …"""
    try:
        from azure.identity import DefaultAzureCredential  # pyright: ignore
    except ImportError:
        raise ModelError(
            "use_azure_identity needs a package: pip install 'rollout-kit[azure]'",
            status=401,
            retryable=False,
        ) from None
    try:
        found = await asyncio.to_thread(lambda: DefaultAzureCredential().get_token(SCOPE))
    except Exception as error:  # each kind of credential has errors of its own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"azure-identity has no token: {reason}", status=503) from error
    return Token(found.token, float(found.expires_on))


def read(printed: bytes) -> Token:
    """A token as a command prints it."""
    told = parsed(printed)
    if isinstance(told, dict):
        value = str(told.get("accessToken") or told.get("access_token") or told.get("token") or "")
        expires = told.get("expires_on") or told.get("expiresOnTimestamp")
        with suppress(TypeError, ValueError):
            return Token(value, float(expires))
    else:
        value = str(told) if isinstance(told, str) else printed.decode(errors="replace").strip()
    return Token(value, _expires_at(value))


def _expires_at(value: str) -> float:
    """What a JSON Web Token says of itself."""
    claims: Any = {}
    with suppress(ValueError, IndexError):
        part = value.split(".")[1]
        claims = orjson.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    expires = claims.get("exp") if isinstance(claims, dict) else None
    return float(expires) if isinstance(expires, int | float) else inf


def _failed(command: str, what: str, *, retryable: bool = True) -> ModelError:
    return ModelError(f"azure_token_command ({command}) {what}", status=503, retryable=retryable)
