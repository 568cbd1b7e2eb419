"""The rows of a dataset as they are, one after the other: a local file's, or the hub's."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from ..errors import ConfigError
from ..serving import registry
from ..store.tasks import numbered_lines
from ..types import JsonObject
from .entries import HuggingFace, Listed

INSTALL = "pip install 'rollout-kit[huggingface]'"


@dataclass(frozen=True, slots=True)
class Row:
    """`content` is None where the line is no JSON object, which `problem` says."""

    number: int
    content: JsonObject | None
    problem: str = ""


def rows(listed: Listed, *, should_download: bool) -> tuple[str, Iterator[Row]]:
    """Where a dataset comes from, and its rows; ConfigError where it is nowhere to be found."""
    entry = listed.entry
    if entry.jsonl_fpath and (path := registry.resolve_path(entry.jsonl_fpath)):
        return str(path), _of_file(path)
    if entry.hub is not None:
        if not should_download:
            raise ConfigError(f"{listed}: it is not here, and should_download is false")
        return f"huggingface:{entry.hub.repo_id}", _of_hub(listed, entry.hub)
    where = ", ".join(map(str, registry.places(entry.jsonl_fpath or "")))
    if entry.gitlab_identifier or entry.source:
        raise ConfigError(
            f"{listed}: only Hugging Face datasets can be fetched: put the file where its"
            f" jsonl_fpath says ({where})"
        )
    raise ConfigError(f"{listed}: no file {entry.jsonl_fpath}: looked for {where}")


def _of_file(path: Path) -> Iterator[Row]:
    for number, raw in numbered_lines(path):
        try:
            content = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            yield Row(number, None, f"not JSON: {error}")
            continue
        if isinstance(content, dict):
            yield Row(number, content)
        else:
            yield Row(number, None, f"not a JSON object but {type(content).__name__}")


def _of_hub(listed: Listed, hub: HuggingFace) -> Iterator[Row]:
    library = _library("datasets", listed)
    try:
        if hub.artifact_fpath is not None:
            path = _library("huggingface_hub", listed).hf_hub_download(
                hub.repo_id, hub.artifact_fpath, repo_type="dataset", revision=hub.revision
            )
            yield from _of_file(Path(path))
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
    except Exception as error:  # of many kinds: no network, no such dataset, a gated one
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"{listed}: {hub.repo_id} cannot be fetched: {type(error).__name__}: {reason}. Where"
            " there is no network, fetch it elsewhere, and name the file as its jsonl_fpath"
        ) from error


def _library(name: str, listed: Listed) -> Any:
    """Imported late: pandas and pyarrow come with it."""
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"{listed}: fetching from Hugging Face needs the library '{name}': {INSTALL}"
        ) from None
