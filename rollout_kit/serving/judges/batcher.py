"""Requests that arrive one by one, and are answered together."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from ...errors import RolloutError

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


class _Waiting(NamedTuple, Generic[Asked, Answered]):
    asked: Asked
    answer: "asyncio.Future[Answered]"


class Batcher(Generic[Asked, Answered]):
    """Has `work` answer up to `size` requests at a time, in the order of their arrival, with at
    most `num_in_flight` batches at work. Requests that arrive meanwhile form the next batches, so
    nothing waits for a batch to become full."""

    def __init__(
        self,
        work: Callable[[Sequence[Asked]], Awaitable[Sequence[Answered]]],
        *,
        size: int,
        num_in_flight: int,
    ) -> None:
        self._work, self._size, self._most = work, size, num_in_flight
        self._waiting: deque[_Waiting[Asked, Answered]] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def ask(self, asked: Asked) -> Answered:
        """The answer to one request. Raises what `work` raises for it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answered] = loop.create_future()
        self._waiting.append(_Waiting(asked, answer))
        loop.call_soon(self._begin)  # so that those of the same turn of the loop go together
        return await answer

    async def stop(self) -> None:
        """Cancel what is at work."""
        for task in list(self._running):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._most:
            batch: list[_Waiting[Asked, Answered]] = []
            while self._waiting and len(batch) < self._size:
                each = self._waiting.popleft()
                if not each.answer.done():  # its caller has left
                    batch.append(each)
            if batch:
                task = asyncio.create_task(self._answer(batch))
                self._running.add(task)
                task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self._begin()

    async def _answer(self, batch: Sequence[_Waiting[Asked, Answered]]) -> None:
        try:
            answers = await self._work([each.asked for each in batch])
        except asyncio.CancelledError:
            for each in batch:
                each.answer.cancel()
            raise
        except RolloutError as error:
            if len(batch) == 1 or error.retryable:
                _refuse(batch, error)
            else:  # one of them may be the cause
                for each in batch:
                    await self._answer([each])
        except Exception as error:
            _refuse(batch, error)
        else:
            for each, answer in zip(batch, answers, strict=True):
                if not each.answer.done():
                    each.answer.set_result(answer)


def _refuse(batch: Sequence[_Waiting[Asked, Answered]], error: Exception) -> None:
    for each in batch:
        if not each.answer.done():
            each.answer.set_exception(error)
