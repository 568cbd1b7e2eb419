"""Tokens of Entra ID: their sources, and their renewal before they expire."""

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

from rollout_kit.errors import ModelError, how_to_install
from rollout_kit.serving.endpoints.refusals import parse_json

SCOPE = "https://cognitiveservices.azure.com/.default"
"""The scope of the tokens."""

MARGIN_S = 300.0
"""A token is renewed this long before it expires, because clocks differ and requests take time."""

PAUSE_S = 30.0
"""Minimum time between two requests for a new token while the old one is still valid."""

COMMAND_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Token:
    """`expires_at` is Unix time; infinity if unknown."""

    value: str
    expires_at: float = inf


Source = Callable[[], Awaitable[Token]]
"""Returns a new token; raises ModelError if there is none."""


class Tokens:
    """The current token, shared by all requests."""

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
        """A token that has not expired."""
        token = self._token
        if token is None or self._now() > token.expires_at - MARGIN_S:
            token = await self._replace(token)
        return token.value

    async def renew(self, refused: str) -> bool:
        """Get a new token if `refused` is the current one; return whether there is another."""
        token = self._token
        if token is None or token.value == refused:
            token = await self._replace(token)
        return token.value != refused

    async def _replace(self, old: Token | None) -> Token:
        async with self._lock:
            if self._token is not None and self._token is not old:
                return self._token  # another request has renewed it meanwhile
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
    """A source that always returns `value`."""

    async def source() -> Token:
        return Token(value)

    return source


def of_command(command: str) -> Source:
    """A source that runs a command. It prints the token, or JSON as `az account get-access-token`
    does."""

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
            raise _error(command, f"cannot be run: {reason}", retryable=False) from None
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                out, err = await process.communicate()
        except TimeoutError:
            raise _error(command, f"did not end within {COMMAND_TIMEOUT_S:g} s") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        if process.returncode:
            last = (err.decode(errors="replace").strip() or "nothing").splitlines()[-1]
            raise _error(command, f"ended with status {process.returncode}: {last}")
        if not out.strip():
            raise _error(command, "printed no token")
        return read(out)

    return source


async def of_identity() -> Token:
    """A token from azure-identity: the environment, a managed identity, `az login`, …"""
    try:
        from azure.identity import DefaultAzureCredential  # pyright: ignore
    except ImportError:
        raise ModelError(
            f"use_azure_identity needs a package: {how_to_install('rollout-kit[azure]')}",
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
    """The token in the output of a command."""
    found = parse_json(printed)
    if isinstance(found, dict):
        names = ("accessToken", "access_token", "token")
        value = str(next((found[name] for name in names if found.get(name)), ""))
        expires = found.get("expires_on") or found.get("expiresOnTimestamp")
        with suppress(TypeError, ValueError):
            return Token(value, float(expires))
    else:
        value = found if isinstance(found, str) else printed.decode(errors="replace").strip()
    return Token(value, _expires_at(value))


def _expires_at(value: str) -> float:
    """The expiry in a JSON Web Token."""
    claims: Any = {}
    with suppress(ValueError, IndexError):
        part = value.split(".")[1]
        claims = orjson.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    expires = claims.get("exp") if isinstance(claims, dict) else None
    return float(expires) if isinstance(expires, int | float) else inf


def _error(command: str, what: str, *, retryable: bool = True) -> ModelError:
    return ModelError(f"azure_token_command ({command}) {what}", status=503, retryable=retryable)
