"""Batches as files for vLLM's `run-batch`, which you or your cluster's queue runs."""

import asyncio
import logging
import shlex
from pathlib import Path

from ...reading import read_lines
from .openai_batches import MAX_BYTES, read_result
from .provider import BatchFile, Look, Take, write_openai_line

log = logging.getLogger(__name__)

MAX_REQUESTS = 1_000_000


class RunBatch:
    """Writes `<id>.in.jsonl` into a folder, and waits there for `<id>.out.jsonl` with a line for
    each request. `model` is that of the command which it reports."""

    name = "vLLM run-batch"
    max_requests, max_bytes = MAX_REQUESTS, 100 * MAX_BYTES
    price_factor = 1.0

    def __init__(self, folder: Path, path: str, model: str) -> None:
        self._folder, self._path, self._model = folder, path, model

    def write(self, name: str, body: bytes) -> bytes:
        return write_openai_line(name, self._path, body)

    async def submit(self, batch: BatchFile) -> str:
        await asyncio.to_thread(self._place, batch)
        given = {"-i": self._input(batch.id), "-o": self._output(batch.id), "--model": self._model}
        words = ["vllm", "run-batch", *(str(word) for pair in given.items() for word in pair)]
        log.warning("a batch of %s requests waits for: %s", f"{batch.number:,}", shlex.join(words))
        return batch.id

    def _place(self, batch: BatchFile) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = self._input(batch.id).with_suffix(".part")
        draft.write_bytes(batch.path.read_bytes())
        draft.rename(self._input(batch.id))

    def _input(self, id: str) -> Path:
        return self._folder / f"{id}.in.jsonl"

    def _output(self, id: str) -> Path:
        return self._folder / f"{id}.out.jsonl"

    def _end_mark(self, id: str) -> Path:
        return self._folder / f"{id}.cancelled"

    async def find(self, batch: BatchFile) -> str | None:
        return batch.id if self._input(batch.id).exists() else None

    async def look(self, found: str) -> Look:
        return await asyncio.to_thread(self._look, found)

    def _look(self, found: str) -> Look:
        if self._end_mark(found).exists():
            return Look("ended")
        if not self._output(found).exists():
            return Look("running")
        wanted, done = _count_lines(self._input(found)), _count_lines(self._output(found))
        return Look("ended" if done >= wanted else "running", done)

    async def fetch(self, found: str, take: Take) -> None:
        def read() -> None:
            for _, line in read_lines(self._output(found)):
                take(*read_result(line))

        await asyncio.to_thread(read)

    async def cancel(self, found: str) -> None:
        """Nothing runs here: what `run-batch` writes later is not read."""
        self._end_mark(found).touch()

    async def close(self) -> None:
        return


def _count_lines(path: Path) -> int:
    """Whole lines of a file; 0 without one."""
    try:
        with path.open("rb") as stream:
            return sum(piece.count(b"\n") for piece in iter(lambda: stream.read(1 << 20), b""))
    except FileNotFoundError:
        return 0
