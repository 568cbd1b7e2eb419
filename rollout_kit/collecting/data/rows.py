"""Read the rows of a dataset, from a local file or from Hugging Face, one at a time."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import orjson
from pydantic import ValidationError

from ...config.fields import problems
from ...config.inputs import HUB
from ...errors import ConfigError, how_to_install
from ...serving import registry
from ...store.input import input_file, number_lines
from ...types import JsonObject
from .entries import HuggingFace, ListedDataset

EXTRA = "rollout-kit[huggingface]"


@dataclass(frozen=True, slots=True)
class Row:
    """A row. If its line is not a JSON object, `content` is None and `problem` is the reason."""

    number: int
    content: JsonObject | None
    problem: str = ""


def open_rows(listed: ListedDataset, *, should_download: bool) -> tuple[str, Iterator[Row]]:
    """Return the origin of a dataset and its rows; raise ConfigError if it cannot be found."""
    entry = listed.entry
    if entry.jsonl_fpath and (path := registry.resolve_path(entry.jsonl_fpath)):
        return str(path), read_file(path)
    if entry.hub is not None:
        if not should_download:
            raise ConfigError(f"{listed}: no local file, and should_download is false")
        return f"huggingface:{entry.hub.repo_id}", _read_hub(listed, entry.hub)
    where = ", ".join(map(str, registry.places(entry.jsonl_fpath or "")))
    if entry.gitlab_identifier or entry.source:
        raise ConfigError(
            f"{listed}: only datasets on Hugging Face can be downloaded: put the file at its"
            f" jsonl_fpath ({where})"
        )
    raise ConfigError(f"{listed}: no file {entry.jsonl_fpath}: searched {where}")


@contextmanager
def open_input(name: str) -> Iterator[Path]:
    """The input of a run as a file that can be read twice. A dataset on Hugging Face, such as
    `hf://openai/gsm8k?config=main&split=test`, is first copied to disk."""
    if not name.startswith(HUB):
        with input_file(name) as path:
            yield path
        return
    hub = _parse_hub(name)
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as spool:
        for row in _read_hub(name, hub):
            spool.write(orjson.dumps(row.content, default=str) + b"\n")
        spool.flush()
        yield Path(spool.name)


def _parse_hub(name: str) -> HuggingFace:
    repo, _, keys = name.removeprefix(HUB).partition("?")
    if not repo:
        raise ConfigError(f"{name}: name the dataset, as in {HUB}openai/gsm8k?split=test")
    try:
        return HuggingFace.model_validate({**dict(parse_qsl(keys)), "repo_id": repo})
    except ValidationError as error:
        lines = [f"{name}: {each.path[-1]}: {each.reason}" for each in problems(error, HuggingFace)]
        raise ConfigError("\n".join(lines)) from None


def read_file(path: Path) -> Iterator[Row]:
    """The rows of a file of JSON lines or a table."""
    for number, raw in number_lines(path):
        try:
            content = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            yield Row(number, None, f"not JSON: {error}")
            continue
        if isinstance(content, dict):
            yield Row(number, content)
        else:
            yield Row(number, None, f"not a JSON object but {type(content).__name__}")


def _read_hub(listed: ListedDataset | str, hub: HuggingFace) -> Iterator[Row]:
    library = _import_library("datasets", listed)
    try:
        if hub.artifact_fpath is not None:
            path = _import_library("huggingface_hub", listed).hf_hub_download(
                hub.repo_id, hub.artifact_fpath, repo_type="dataset", revision=hub.revision
            )
            yield from read_file(Path(path))
            return
        stream = library.load_dataset(
            hub.repo_id,
            hub.config,
            split=hub.split or "train",
            revision=hub.revision,
            streaming=True,
        )
        for number, content in enumerate(stream, 1):
            yield Row(number, dict(content))
    except ConfigError:
        raise
    except Exception as error:  # many types: no network, unknown dataset, gated dataset
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"{listed}: cannot download {hub.repo_id}: {type(error).__name__}: {reason}. Without"
            " a network, download it elsewhere and name the file in jsonl_fpath"
        ) from error


def _import_library(name: str, listed: ListedDataset | str) -> Any:
    """Import a library late, because it imports pandas and pyarrow."""
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"{listed}: a download from Hugging Face needs the library '{name}':"
            f" {how_to_install(EXTRA)}"
        ) from None
