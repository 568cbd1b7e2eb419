"""OpenAI's batches, through its own client; Azure OpenAI has the same interface."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import orjson

from ...errors import ConfigError, how_to_install
from .provider import (
    HALF_PRICE,
    UNANSWERED,
    BatchFile,
    Look,
    Take,
    client_errors,
    write_openai_line,
)

OUR_ID = "rollout_kit_batch"
"""Name of our id in the metadata of a batch."""

MAX_REQUESTS, MAX_BYTES = 50_000, 200_000_000
"""OpenAI's limits of one batch."""

RUNNING = frozenset({"validating", "in_progress", "finalizing", "cancelling"})

NO_ANSWER = frozenset({"batch_expired", "batch_cancelled"})
"""Codes of requests that were not executed."""

QUOTA_CODES = frozenset({"token_limit_exceeded", "rate_limit_exceeded"})
"""Codes of a batch that is too much beside those that wait already."""

EARLIER_S = 3600.0
"""Clocks of the provider and of this machine differ by less."""

TIMEOUT_S = 600.0
"""Time limit of one request to the interface of batches; a file may be large."""


class OpenAIBatches:
    """`path` is that of the requests; `headers` gives the credentials."""

    max_requests, max_bytes = MAX_REQUESTS, MAX_BYTES
    price_factor = HALF_PRICE

    def __init__(
        self,
        base_url: str,
        path: str,
        headers: Callable[[], Awaitable[Mapping[str, str]]],
        *,
        query: Mapping[str, str] | None = None,
        name: str = "OpenAI",
    ) -> None:
        self.name = name
        try:
            import openai
        except ImportError:
            command = how_to_install("rollout-kit[batch]")
            raise ConfigError(f"batch: needs the package openai: run {command}") from None
        self._openai, self._path, self._headers = openai, path, headers
        # it repeats nothing by itself: a batch that is created twice is paid for twice
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key="-",
            default_query=dict(query or {}),
            max_retries=0,
            timeout=TIMEOUT_S,
        )

    def write(self, name: str, body: bytes) -> bytes:
        return write_openai_line(name, self._path, body)

    async def submit(self, batch: BatchFile) -> str:
        headers = await self._credentials()
        with self._errors(), batch.path.open("rb") as stream:
            file = await self._client.files.create(
                file=(f"{batch.id}.jsonl", stream, "application/jsonl"),
                purpose="batch",
                extra_headers=headers,
            )
        with self._errors(is_unsure=True):
            created = await self._client.batches.create(
                input_file_id=file.id,
                endpoint=self._path,  # type: ignore[arg-type]
                completion_window="24h",
                metadata={OUR_ID: batch.id},
                extra_headers=headers,
            )
        return created.id

    async def find(self, batch: BatchFile) -> str | None:
        headers = await self._credentials()
        with self._errors():
            async for each in self._client.batches.list(limit=100, extra_headers=headers):
                if (each.metadata or {}).get(OUR_ID) == batch.id:
                    return each.id
                if each.created_at < batch.since - EARLIER_S:
                    break
        return None

    async def look(self, found: str) -> Look:
        headers = await self._credentials()
        with self._errors():
            batch = await self._client.batches.retrieve(found, extra_headers=headers)
        counts = batch.request_counts
        done = counts.completed + counts.failed if counts else 0
        if batch.status in RUNNING:
            return Look("running", done)
        if batch.status != "failed":
            return Look("ended", done)
        errors = (batch.errors and batch.errors.data) or []
        reason = "; ".join(filter(None, (each.message for each in errors))) or "no reason given"
        is_passing = any(each.code in QUOTA_CODES for each in errors)
        return Look("failed", reason=reason, is_passing=is_passing)

    async def fetch(self, found: str, take: Take) -> None:
        headers = await self._credentials()
        with self._errors():
            batch = await self._client.batches.retrieve(found, extra_headers=headers)
            for file in (batch.output_file_id, batch.error_file_id):
                if file:
                    async for line in self._lines(file, headers):
                        take(*read_result(line))

    async def _lines(self, file: str, headers: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """The lines of a file; a line may be long, and has other line ends in its texts."""
        answering = self._client.files.with_streaming_response.content(file, extra_headers=headers)
        async with answering as response:
            begun: list[bytes] = []
            async for piece in response.iter_bytes():
                *whole, rest = piece.split(b"\n")
                for line in whole:
                    yield b"".join([*begun, line])
                    begun.clear()
                begun.append(rest)
            if last := b"".join(begun).strip():
                yield last

    async def cancel(self, found: str) -> None:
        headers = await self._credentials()
        with self._errors():
            await self._client.batches.cancel(found, extra_headers=headers)

    async def close(self) -> None:
        await self._client.close()

    async def _credentials(self) -> dict[str, Any]:
        """The headers of a request, without the client's own key."""
        return {"Authorization": self._openai.Omit(), **_name_as_client(await self._headers())}

    def _errors(self, *, is_unsure: bool = False) -> AbstractContextManager[None]:
        of_status, of_client = self._openai.APIStatusError, self._openai.OpenAIError
        return client_errors(self.name, of_status, of_client, is_unsure=is_unsure)


def _name_as_client(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers under the names that the client knows."""
    return {
        "Authorization" if name.lower() == "authorization" else name: value
        for name, value in headers.items()
    }


def read_result(line: bytes) -> tuple[str, int, Any]:
    """Name, status and body of a line of results, as OpenAI and vLLM write it; an empty name if it
    is none."""
    try:
        found = orjson.loads(line)
        name, response, error = found["custom_id"], found.get("response"), found.get("error")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return "", UNANSWERED, None
    if isinstance(response, dict) and (status := response.get("status_code")):
        return str(name), int(status), response.get("body")
    code = error.get("code") if isinstance(error, dict) else None
    if code in NO_ANSWER:
        return str(name), UNANSWERED, None
    return str(name), 500, {"error": error}
