"""Files of a dataset on Hugging Face, at one commit.

The environment variable `HF_ENDPOINT` names another hub, and `HF_TOKEN` has the token.
"""

import os
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import BaseModel

from ....errors import ConfigError, how_to_install
from ....types import JsonObject
from ..entries import HuggingFace
from ..rows import read_file

AnyOrigin = TypeVar("AnyOrigin", bound=BaseModel)

PART = "{part}"

EXTRA = "rollout-kit[benchmarks]"

ROWS = re.compile(r"\.(parquet|jsonl|json|csv|tsv|arrow)(\.gz|\.zst)?$")


def read_hub_files(
    name: str, origin: HuggingFace, gated: str | None
) -> tuple[Iterator[JsonObject], str]:
    """The rows of a dataset and the commit they are of; ConfigError if they cannot be had. `gated`:
    the page where its terms are accepted."""
    try:
        library = import_module("huggingface_hub")
    except ImportError:
        raise ConfigError(f"{name}: {how_to_install(EXTRA)}") from None
    try:
        hub = library.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        about = hub.dataset_info(origin.repo_id, revision=origin.revision)
        names = [each.rfilename for each in about.siblings]
        paths = [
            (
                part,
                hub.hf_hub_download(origin.repo_id, each, repo_type="dataset", revision=about.sha),
            )
            for part in origin.parts or [None]
            for each in choose_files(names, take_part(origin, part), name)
        ]
    except ConfigError:
        raise
    except Exception as error:  # many types: no network, unknown dataset or revision, gated dataset
        raise ConfigError(f"{name}: {_explain(error, origin, gated)}") from error
    files_of = (mark(read_objects(Path(path), Path(path).name), part) for part, path in paths)
    return chain.from_iterable(files_of), about.sha


def take_part(origin: AnyOrigin, part: str | None) -> AnyOrigin:
    """The origin of one part of the rows."""
    if part is None:
        return origin
    texts = {name: value for name, value in origin if isinstance(value, str) and PART in value}
    return origin.model_copy(
        update={name: value.replace(PART, part) for name, value in texts.items()}
    )


def mark(rows: Iterator[JsonObject], part: str | None) -> Iterator[JsonObject]:
    """Rows that say which part they are of."""
    return rows if part is None else ({**row, "part": part} for row in rows)


def choose_files(names: Sequence[str], origin: HuggingFace, name: str) -> list[str]:
    """The files that hold a split of a configuration, as their names say; ConfigError if none does,
    or if they are of several kinds."""
    if origin.artifact_fpath is not None:
        return [origin.artifact_fpath]
    split, config = origin.split or "train", origin.config
    found = [each for each in names if ROWS.search(each)]
    if config is not None:
        found = [each for each in found if config.lower() in _words(each)]
    found = [each for each in found if split.lower() in _words(each)] or (
        found if len(found) == 1 else []
    )
    kinds = {Path(each).suffix for each in found}
    if len(kinds) != 1:
        wanted = f"the split {split}" + (f" of {config}" if config else "")
        listed = ", ".join(each for each in names if ROWS.search(each)) or "no file with rows"
        raise ConfigError(
            f"{name}: {origin.repo_id}: which file has {wanted} is not clear: name it as"
            f" artifact_fpath; there are {listed:.500}"
        )
    return sorted(found)


def _words(name: str) -> set[str]:
    """The words of a path, and its folders."""
    folders = Path(name).parent.parts
    return {word.lower() for word in [*re.split(r"[/.\-]|_(?=\d)", name), *folders]}


def _explain(error: Exception, origin: HuggingFace, gated: str | None) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    kind = type(error).__name__
    if status in (401, 403) or "Gated" in kind:
        page = gated or f"https://huggingface.co/datasets/{origin.repo_id}"
        return (
            f"{origin.repo_id} is gated: accept its terms at {page}, then set HF_TOKEN in the"
            " environment"
        )
    if "RevisionNotFound" in kind:
        return f"{origin.repo_id} has no revision {origin.revision} any more: its rows have changed"
    reason = " ".join(str(error).split())[:300]
    return (
        f"cannot download {origin.repo_id}: {kind}: {reason}. Without a network, prepare it where"
        " there is one, and copy the cache folder"
    )


def read_objects(path: Path, name: str) -> Iterator[JsonObject]:
    """The rows of a file that a publisher calls `name`; ConfigError if one is none."""
    if name.endswith(".json") and (rows := _read_list(path)) is not None:
        yield from rows
        return
    for row in read_file(path):
        if row.content is None:
            raise ConfigError(f"{name}:{row.number}: {row.problem}")
        yield row.content


def _read_list(path: Path) -> list[JsonObject] | None:
    """The rows of a file that is one list of objects; None if it is none."""
    raw = path.read_bytes()
    found = orjson.loads(raw) if raw.lstrip()[:1] == b"[" else None
    is_list = isinstance(found, list) and all(isinstance(each, dict) for each in found)
    return found if is_list else None
