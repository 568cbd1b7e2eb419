"""Finds and writes texts of rows in a process that can be killed."""

from pathlib import Path
from typing import Any

from ...errors import ConfigError, how_to_install
from ...serving.workers.blocking import BlockingWorker
from ...serving.workers.pool import LACKS, WorkerError
from ...types import JsonObject

FILE = Path(__file__).with_name("row_worker.py")


class RowTexts:
    """The process starts with the first text. All errors of a row are ValueErrors."""

    def __init__(self, deadline_s: float = 1.0) -> None:
        self._worker = BlockingWorker(FILE, "work", deadline_s=deadline_s)

    def search(self, pattern: str, text: str) -> str | None:
        """What a regular expression finds in a text: its group `answer`, or else its first."""
        return self._call("regex", "search", pattern, text)

    def render(self, template: str, row: JsonObject) -> str:
        """A jinja template with the fields of a row; ConfigError if the template is none."""
        return self._call("prompt", "render", template, row)

    def read_calls(self, texts: list[str]) -> list[tuple[str, list[Any], JsonObject]]:
        """Name, positional and named arguments of calls that are written in Python."""
        return self._call("calls", "read_calls", texts)

    def read_list(self, text: str) -> list[Any]:
        """A list of texts or numbers that is written in Python."""
        return self._call("list", "read_list", text)

    def close(self) -> None:
        """End the process."""
        self._worker.close()

    def _call(self, key: str, *arguments: Any) -> Any:
        try:
            return self._worker.call(*arguments)
        except TimeoutError as error:
            raise ValueError(f"{key}: {error}") from None
        except WorkerError as error:
            if error.kind in LACKS:
                raise ConfigError(f"{key}: {how_to_install('rollout-kit[prompt]')}") from None
            if error.kind == "TemplateSyntaxError":
                raise ConfigError(f"{key}: not a jinja template: {error.message}") from None
            raise ValueError(f"{key}: {error.message}") from None
