"""A collection in Python whose groups go into a buffer."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

from ...api.arguments import read_keys
from ...api.reached import Reach
from ...api.runs import Collecting
from ...api.servers import log_event
from ...collecting.run import Run
from ...collecting.sources import TaskSource
from ...config.keys import CollectConfig
from ...errors import ConfigError
from ...launch.reach import Servers
from ..buffer.buffer import Buffer
from .epochs import EpochSource
from .producer import produce


class Producing(Collecting):
    """What `collect` returns."""

    def __init__(
        self, servers: Servers, tasks: str | Path, command: CollectConfig, buffer: Buffer
    ) -> None:
        super().__init__(Reach(servers), tasks, command)
        self._buffer = buffer

    def _source(self) -> Callable[..., TaskSource]:
        return partial(EpochSource, epochs=self._command.epochs)

    def _beside(self, run: Run) -> AbstractAsyncContextManager[object]:
        return produce(self._buffer, run, log_event)


def collect(
    servers: Servers,
    tasks: str | Path,
    *,
    buffer: Buffer,
    output: str | Path,
    epochs: int | None = None,
    longest_first: bool = False,
    **keys: Any,
) -> Producing:
    """Collect into `output`, and put each complete group of rollouts into `buffer`: iterate over
    the result, which ends after so many `epochs`, or when the trainer finishes the buffer.

    `tasks` is a JSONL file, `keys` are those of `rollout_kit.collect`. Raises what that raises.
    """
    own = {"epochs": epochs, "longest_first": longest_first}
    command = read_keys(CollectConfig, output, keys, **own)
    if not isinstance(buffer, Buffer):
        raise ConfigError(f"buffer: expected an open one, as of await open_buffer({buffer!r})")
    if not isinstance(tasks, str | Path):
        what = f"expected the path of a JSONL file, not {type(tasks).__name__}"
        raise ConfigError(f"tasks: {what}: each epoch reads them again")
    return Producing(servers, tasks, command, buffer)
