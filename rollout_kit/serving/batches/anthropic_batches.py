"""Anthropic's message batches, through its own client.

They have no room for an id of ours. A batch that may have been submitted is known by its time, its
number of requests and, once it has ended, by their names.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from ...errors import ConfigError, ModelError, how_to_install
from .provider import HALF_PRICE, UNANSWERED, BatchFile, Look, Take, client_errors

MAX_REQUESTS, MAX_BYTES = 100_000, 256_000_000
"""Anthropic's limits of one batch."""

PATH = "/v1/messages/batches"

EARLIER_S = 3600.0
"""Clocks of the provider and of this machine differ by less."""

TIMEOUT_S = 600.0
"""Time limit of one request to the interface of batches; a batch may be large."""

STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Type of a request's error → the status that it would have outside of a batch; others: 500."""


class AnthropicBatches:
    """`headers` gives the credentials."""

    name = "Anthropic"
    max_requests, max_bytes = MAX_REQUESTS, MAX_BYTES
    price_factor = HALF_PRICE

    def __init__(self, base_url: str, headers: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        try:
            import anthropic
        except ImportError:
            command = how_to_install("rollout-kit[batch]")
            raise ConfigError(f"batch: needs the package anthropic: run {command}") from None
        self._anthropic, self._headers = anthropic, headers
        # it repeats nothing by itself: a batch that is created twice is paid for twice
        self._client = anthropic.AsyncAnthropic(
            base_url=base_url.rstrip("/").removesuffix("/v1"),
            api_key="-",
            max_retries=0,
            timeout=TIMEOUT_S,
        )

    def write(self, name: str, body: bytes) -> bytes:
        return b'{"custom_id":"%b","params":%b}\n' % (name.encode(), body)

    async def submit(self, batch: BatchFile) -> str:
        requests = b",".join(batch.path.read_bytes().splitlines())
        client = await self._known()
        with self._errors(is_unsure=True):
            created = await client.post(
                PATH,
                content=b'{"requests":[%b]}' % requests,
                cast_to=self._anthropic.types.messages.MessageBatch,
                options={"headers": {"content-type": "application/json"}},
            )
        return created.id

    async def find(self, batch: BatchFile) -> str | None:
        client = await self._known()
        with self._errors():
            async for each in client.messages.batches.list(limit=100):
                if each.created_at.timestamp() < batch.since - EARLIER_S:
                    break
                if each.id not in batch.taken and await self._is_it(each, batch):
                    return each.id
        return None

    async def _is_it(self, each: Any, batch: BatchFile) -> bool:
        """Whether a batch of the account is this one. ModelError while that cannot be told, as it
        has not ended."""
        counts = each.request_counts
        kinds = counts.processing, counts.succeeded, counts.errored, counts.canceled, counts.expired
        if sum(kinds) != batch.number:
            return False
        if each.processing_status != "ended":
            raise ModelError(
                f"{each.id} may be a batch of an earlier run: waiting until it has ended",
                retryable=True,
            )
        async for name, _ in self._results(each.id):
            return batch.has(name)
        return False

    async def look(self, found: str) -> Look:
        client = await self._known()
        with self._errors():
            batch = await client.messages.batches.retrieve(found)
        # the counts are 0 until all have ended
        return Look("ended" if batch.processing_status == "ended" else "running")

    async def fetch(self, found: str, take: Take) -> None:
        with self._errors():
            async for name, result in self._results(found):
                take(name, *read_outcome(result))

    async def _results(self, found: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        client = await self._known()
        async for each in await client.messages.batches.results(found):
            line = each.model_dump(mode="json", exclude_unset=True)
            yield line["custom_id"], line["result"]

    async def cancel(self, found: str) -> None:
        client = await self._known()
        with self._errors():
            await client.messages.batches.cancel(found)

    async def close(self) -> None:
        await self._client.close()

    async def _known(self) -> Any:
        """The client with the credentials of now, in place of its own key. A call for results makes
        several requests, which all need them."""
        given = {name.lower(): value for name, value in (await self._headers()).items()}
        names = {"x-api-key": "X-Api-Key", "authorization": "Authorization"}
        headers = {names.get(name, name): value for name, value in given.items()}
        return self._client.with_options(
            default_headers={"X-Api-Key": self._anthropic.Omit(), **headers}
        )

    def _errors(self, *, is_unsure: bool = False) -> AbstractContextManager[None]:
        of_status, of_client = self._anthropic.APIStatusError, self._anthropic.AnthropicError
        return client_errors(self.name, of_status, of_client, is_unsure=is_unsure)


def read_outcome(result: dict[str, Any]) -> tuple[int, Any]:
    """Status and body of a result."""
    match result.get("type"):
        case "succeeded":
            return 200, result.get("message")
        case "errored":
            body = result.get("error") or {}
            inner = found if isinstance(found := body.get("error"), dict) else body
            return STATUSES.get(str(inner.get("type")), 500), {"type": "error", "error": inner}
        case _:
            return UNANSWERED, None
