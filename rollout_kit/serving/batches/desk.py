"""Requests of one model server gather here into batches, and get their answers from them.

A request is known by its rollout, its content, and its number among equal ones of that rollout. So
whoever asks again, also after a restart, gets the answer of the batch that has the request, and
none is submitted twice. What has not reached the provider when the server ends is forgotten.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import orjson

from ...errors import BatchPending, ModelError
from ...session import Session
from ...time_limit import holding, running_loop
from ...types import JsonObject
from ..endpoints.prices import BATCH, Tariff
from ..transport.wire import canonical_request
from .folder import NAME_DIGITS, BatchFolder, ResultsWriter, StoredBatch
from .provider import UNANSWERED, BatchFile, Look, Provider, Unsure

log = logging.getLogger(__name__)

NUM_GATHERS = 10
"""A batch is submitted so many times `gather_s` after its first request, even if more arrive."""

NUM_LOOKS = 3
"""Looks for a batch, `poll_s` apart, after which it was not submitted: a request that creates one
may still be on its way when the server that sent it is gone."""

LONGEST_PAUSE_S = 300.0
"""Between two tries to submit a batch."""

MAX_DELIVERED = 10_000
"""Requests of which it is known how often their session had them answered."""

REPORT_EVERY_S = 300.0
"""Between two warnings about a provider that does not answer."""


@dataclass(frozen=True, slots=True)
class BatchTerms:
    """How a server's requests gather, and how long they wait."""

    folder: Path
    size: int | None = None
    gather_s: float = 10.0
    poll_s: float = 30.0
    max_wait_s: float = 86_400.0
    has_fallback: bool = False
    max_tries: int = 4


class BatchResult(NamedTuple):
    """What came back for a request: its HTTP status and body."""

    status: int
    payload: Any


class BatchDesk:
    """Opened by the first request."""

    def __init__(self, name: str, terms: BatchTerms, connect: Callable[[], Provider]) -> None:
        self.name, self.terms, self._connect = name, terms, connect
        self._known_provider: Provider | None = None
        self._folder: BatchFolder | None = None
        self._batches: dict[str, StoredBatch] = {}
        self._latest: dict[bytes, StoredBatch] = {}
        """Request → the last batch that has it."""
        self._tries: dict[bytes, int] = {}
        """Request → batches that had it, if several."""
        self._since: dict[bytes, float] = {}
        """Unix time since which a request waits, if it was in several."""
        self._gathering: dict[str, StoredBatch] = {}
        """Model → the batch that its requests go into: a batch has one model."""
        self._delivered: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._not_before = 0.0
        """Time of the loop before which nothing is submitted."""
        self._pause_s = terms.poll_s
        self._reported_at = float("-inf")

    @property
    def _provider(self) -> Provider:
        if self._known_provider is None:
            self._known_provider = self._connect()
        return self._known_provider

    def connect(self) -> None:
        """Raise ConfigError if the provider's client is missing."""
        assert self._provider

    def price(self, tariff: Tariff | None) -> Tariff | None:
        """The tariff with the price of batches."""
        return tariff and tariff.with_tier(BATCH, self._provider.price_factor)

    def describe(self) -> JsonObject:
        """What a plan says about the batches."""
        provider, terms = self._provider, self.terms
        return {
            "provider": provider.name,
            "size": min(terms.size or provider.max_requests, provider.max_requests),
            "max_wait_s": terms.max_wait_s,
            "fallback": terms.has_fallback,
        }

    async def ask(
        self, session: Session, model: str, body: bytes, read: Callable[[BatchResult], JsonObject]
    ) -> JsonObject | None:
        """The response that `read` makes of the result of a request; None if the endpoint is to be
        asked at once, as the batch has not answered. BatchPending while there is no result, unless
        the session's ticket waits. What `read` raises as retryable has the request go into another
        batch."""
        self._open()
        base, ticket = self._digest(session, body), session.ticket
        times = self._delivered.get((session.id, base), 0)
        name = base if not times else _digest_of(base, str(times).encode())
        while True:
            batch = self._latest.get(name)
            if batch is None or batch.is_dropped:
                batch = self._gather(name, model, body)
            if not batch.is_settled:
                if ticket is None or not ticket.waits:
                    raise BatchPending(
                        f"waits for a batch of {self._provider.name}",
                        body=f"{batch.id} {name.hex()}",
                        retryable=False,
                    )
                with holding(session.limits):
                    await batch.settled.wait()
                continue
            found = self._settle(name, batch)
            if found is None:
                if self.terms.has_fallback and not batch.is_cancelled:
                    return None
            else:
                try:
                    response = read(found)
                except ModelError as error:
                    if not error.retryable or self._tries.get(name, 1) >= self.terms.max_tries:
                        self._forget(name)  # it may be asked again
                        raise
                else:
                    self._count_answer(session.id, base)
                    return response
            self._gather(name, model, body)

    def _digest(self, session: Session, body: bytes) -> bytes:
        ticket = session.ticket
        assert ticket is not None
        return _digest_of(ticket.id.encode(), canonical_request(orjson.loads(body)))

    def _settle(self, name: bytes, batch: StoredBatch) -> BatchResult | None:
        """The result in a settled batch; None if it has none, and may get one elsewhere."""
        if batch.refusal is not None:
            self._forget(name)
            raise copy(batch.refusal)
        status, payload = batch.read(name)
        if status != UNANSWERED:
            return BatchResult(status, payload)
        waited_s = time.time() - self._since.get(name, batch.at)
        if waited_s >= self.terms.max_wait_s and not self.terms.has_fallback:
            self._forget(name)
            raise ModelError(
                f"no batch has answered within batch_max_wait_s={self.terms.max_wait_s:g};"
                " batch_fallback: true asks the endpoint without a batch then",
                status=504,
                retryable=False,
            )
        return None

    def _forget(self, name: bytes) -> None:
        for known in (self._latest, self._tries, self._since):
            known.pop(name, None)

    def _count_answer(self, session: str, base: bytes) -> None:
        """An equal request of the same session is another one from now on."""
        key = session, base
        self._delivered[key] = self._delivered.pop(key, 0) + 1
        if len(self._delivered) > MAX_DELIVERED:
            self._delivered.popitem(last=False)

    def _gather(self, name: bytes, model: str, body: bytes) -> StoredBatch:
        """Put a request into the batch that gathers."""
        if (last := self._latest.get(name)) is not None and not last.is_dropped:
            self._tries[name] = self._tries.get(name, 1) + 1
            self._since.setdefault(name, last.at)
        assert self._folder is not None
        line = self._provider.write(name.hex(), body)
        now, batch = running_loop().time(), self._gathering.get(model)
        if batch is not None and batch.size + len(line) > self._provider.max_bytes:
            self._close(model, batch)
            batch = None
        if batch is None:
            batch = self._folder.begin(token_hex(NAME_DIGITS // 4))
            batch.first_at = now
            self._batches[batch.id] = self._gathering[model] = batch
            self._begin(batch, partial(self._carry, model))
        batch.last_at = now
        batch.append(line)
        self._latest[name] = batch
        most = self._provider.max_requests
        if batch.number >= min(self.terms.size or most, most):
            self._close(model, batch)
        return batch

    def _close(self, model: str, batch: StoredBatch) -> None:
        """Let nothing more into a batch."""
        batch.is_full.set()
        if self._gathering.get(model) is batch:
            del self._gathering[model]

    def _begin(self, batch: StoredBatch, work: Callable[[StoredBatch], Awaitable[None]]) -> None:
        async def watch() -> None:
            try:
                await work(batch)
            except Exception as bug:  # else its requests would wait for ever
                log.exception("%s: an unexpected error with a batch", self.name)
                # a later run may go on with it, so the journal says nothing
                batch.refusal = ModelError(f"{type(bug).__name__}: {bug}", retryable=False)
                batch.settled.set()

        task = asyncio.ensure_future(watch())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, model: str, batch: StoredBatch) -> None:
        """Take a batch from its first request to its results."""
        await self._wait_for_more(batch)
        self._close(model, batch)
        assert self._folder is not None
        try:
            await asyncio.to_thread(batch.seal)
            began = {"began": batch.at, "requests": batch.number, "model": model}
            await asyncio.to_thread(self._folder.note, batch, "intent", **began)
        except OSError as error:
            what = f"a batch cannot be written to {batch.folder}: {error.strerror}; make room there"
            self._refuse(batch, ModelError(what, retryable=False))
            return
        await self._submit(batch)

    async def _wait_for_more(self, batch: StoredBatch) -> None:
        now, gather_s = running_loop().time, self.terms.gather_s
        while not batch.is_full.is_set():
            ends = min(batch.last_at + gather_s, batch.first_at + NUM_GATHERS * gather_s)
            if (left := max(ends, self._not_before) - now()) <= 0:
                return
            try:
                async with asyncio.timeout(left):
                    await batch.is_full.wait()
            except TimeoutError:
                continue
        await asyncio.sleep(max(0.0, self._not_before - now()))

    async def _submit(self, batch: StoredBatch) -> None:
        """Submit a batch whose intent is journalled, and follow it."""
        pause_s, file = self.terms.poll_s, self._file_of(batch)
        while not batch.provider_id and not batch.is_cancelled:
            try:
                batch.provider_id = await self._provider.submit(file)
            except Unsure as error:
                self._report(error)
                batch.provider_id = await self._find(batch) or ""
            except ModelError as error:
                if not error.retryable:
                    self._refuse(batch, error)
                    return
                self._report(error)
                await asyncio.sleep(max(pause_s, error.retry_after_s or 0.0))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        await self._follow(batch, is_new=True)

    def _file_of(self, batch: StoredBatch) -> BatchFile:
        taken = frozenset(each.provider_id for each in self._batches.values() if each is not batch)
        return BatchFile(batch.id, batch.requests, batch.number, batch.at, taken)

    async def _recover(self, batch: StoredBatch) -> None:
        """Find a batch that an earlier server may have submitted; else its requests are new."""
        batch.provider_id = await self._find(batch) or ""
        if batch.provider_id:
            await self._follow(batch, is_new=True)
        else:
            await self._drop(batch)

    async def _find(self, batch: StoredBatch) -> str | None:
        looks = 0
        while True:
            try:
                if (found := await self._provider.find(self._file_of(batch))) is not None:
                    return found
                looks += 1
            except ModelError as error:
                self._report(error)
            if looks >= NUM_LOOKS:
                return None
            await asyncio.sleep(self.terms.poll_s)

    async def _follow(self, batch: StoredBatch, *, is_new: bool = False) -> None:
        """Wait for the results of a batch, and keep them."""
        assert self._folder is not None
        if not batch.provider_id:
            await self._drop(batch)
            return
        if is_new:
            found = {"id": batch.provider_id}
            await asyncio.to_thread(self._folder.note, batch, "submitted", **found)
        while (look := await self._look(batch)).state == "running":
            batch.done = look.done
            if batch.is_cancelled or time.time() - batch.at >= self.terms.max_wait_s:
                await self._end(batch)
            await asyncio.sleep(self.terms.poll_s)
        if look.state == "failed":
            error = ModelError(f"the batch was refused: {look.reason}", retryable=False)
            if not look.is_passing:
                self._refuse(batch, error)
                return
            self._report(error)
            self._not_before = running_loop().time() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            await self._drop(batch)
            return
        self._pause_s = self.terms.poll_s
        await self._fetch(batch)

    async def _look(self, batch: StoredBatch) -> Look:
        while True:
            try:
                return await self._provider.look(batch.provider_id)
            except ModelError as error:
                if error.status == 404:
                    return Look("failed", reason=f"it no longer has {batch.provider_id}")
                self._report(error)
            await asyncio.sleep(self.terms.poll_s)

    async def _fetch(self, batch: StoredBatch) -> None:
        assert self._folder is not None
        while True:
            names = await asyncio.to_thread(lambda: list(batch.names()))
            results = ResultsWriter(batch, names)
            try:
                await self._provider.fetch(batch.provider_id, results.take)
                await asyncio.to_thread(results.end)
                break
            except ModelError as error:
                self._report(error)
            finally:
                results.abandon()
            await asyncio.sleep(self.terms.poll_s)
        await asyncio.to_thread(self._folder.note, batch, "settled")
        batch.requests.unlink(missing_ok=True)
        await asyncio.to_thread(batch.load_results)
        batch.settled.set()

    def _refuse(self, batch: StoredBatch, error: ModelError) -> None:
        """None of the requests will be answered. A later run submits them again."""
        batch.refusal = error
        log.warning("%s: %s", self.name, error)
        assert self._folder is not None
        with suppress(OSError):
            self._folder.note(batch, "failed", reason=error.message)
        batch.requests.unlink(missing_ok=True)
        batch.settled.set()

    async def _drop(self, batch: StoredBatch) -> None:
        """The requests of a batch that was not executed are asked for again."""
        assert self._folder is not None
        await asyncio.to_thread(self._folder.note, batch, "dropped")
        batch.is_dropped = True
        batch.requests.unlink(missing_ok=True)
        batch.settled.set()

    def _report(self, error: ModelError) -> None:
        if (now := time.monotonic()) - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            log.warning("%s: batches wait: %s", self.name, error)

    async def _end(self, batch: StoredBatch) -> None:
        """Have the provider end a batch; its answers so far are kept."""
        if batch.is_ending:
            return
        try:
            await self._provider.cancel(batch.provider_id)
            batch.is_ending = True
        except ModelError as error:
            self._report(error)

    async def cancel(self) -> int:
        """Have the provider end all batches; returns their number. What has not been submitted is
        forgotten."""
        live = [batch for batch in self._batches.values() if not batch.is_settled]
        for batch in live:
            batch.is_cancelled = True
            if batch.provider_id and self._folder is not None:
                await asyncio.to_thread(self._folder.note, batch, "cancelled")
                await self._end(batch)
        return len(live)

    def find_settled(self, ids: Iterable[str]) -> list[str]:
        """Those of the batches that are waited for no longer, or are not known."""
        self._open()
        batches = self._batches
        return [id for id in ids if id not in batches or batches[id].is_settled]

    def figures(self) -> JsonObject:
        """Batches at the provider, requests that wait for them, and those that gather."""
        live = [batch for batch in self._batches.values() if not batch.is_settled]
        sent = [batch for batch in live if batch.provider_id]
        waiting = sum(batch.number - batch.done for batch in sent)
        gathering = sum(batch.number for batch in live if not batch.provider_id)
        return {"batches": len(sent), "in_batches": waiting, "gathering": gathering}

    def _open(self) -> None:
        """Go on with what earlier servers have left."""
        if self._folder is not None:
            return
        folder = BatchFolder(self.terms.folder, self.name)
        self._folder = folder
        for batch in folder.load():
            self._batches[batch.id] = batch
            for name in batch.names():
                if (last := self._latest.get(name)) is not None:
                    self._tries[name] = self._tries.get(name, 1) + 1
                    self._since.setdefault(name, last.at)
                self._latest[name] = batch
            if not batch.is_settled:
                self._begin(batch, self._follow if batch.provider_id else self._recover)

    async def stop(self) -> None:
        """Leave the batches to the provider; the next server fetches them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._known_provider is not None:
            await self._known_provider.close()
        if self._folder is not None:
            for batch in self._batches.values():
                batch.close()
            self._folder.close()
            self._folder = None


def _digest_of(*parts: bytes) -> bytes:
    found = blake2b(digest_size=NAME_DIGITS // 2)
    for part in parts:
        found.update(b"%d:%b" % (len(part), part))
    return found.digest()
