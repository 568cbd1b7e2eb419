"""Made rows as the files of a dataset, in the stand-in of the hub or on disk."""

import csv
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
from hub import Hub
from pyarrow import ipc, parquet

from rollout_kit.config.benchmarks.definition import Definition

Rows = list[dict[str, Any]]


def as_parquet(rows: Rows) -> bytes:
    stream = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), stream)
    return stream.getvalue()


def as_arrow(rows: Rows) -> bytes:
    table, stream = pyarrow.Table.from_pylist(rows), io.BytesIO()
    with ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


def as_csv(rows: Rows, delimiter: str = ",", *, has_header: bool = True) -> bytes:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), delimiter=delimiter)
    if has_header:
        writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


def as_jsonl(rows: Rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


FORMATS: dict[str, Callable[[Rows], bytes]] = {
    ".jsonl": as_jsonl,
    ".json": lambda rows: json.dumps(rows).encode(),
    ".csv": as_csv,
    ".arrow": as_arrow,
}


def encode(name: str, rows: Rows) -> bytes:
    """Rows in the format that the name of their file says."""
    return FORMATS.get(Path(name).suffix, as_parquet)(rows)


def publish(hub: Hub, definition: Definition, rows: Rows) -> None:
    """Put rows into the hub, in files as the dataset has them."""
    files = {"README.md": b"# A dataset", "dataset_info.json": b"{}"}
    _add_files(files, definition.source, rows)
    if definition.examples:
        _add_files(files, {**definition.source, **definition.examples.source}, rows)
    hub.files[definition.source["repo_id"]] = files


def _add_files(files: dict[str, bytes], source: dict[str, Any], rows: Rows) -> None:
    if "config" in source:
        files[f"other/{source['split']}-00000-of-00001.csv"] = b"a,b\n1,2\n"
    for part in source.get("parts") or [""]:
        own = [dict(row) for row in rows if row.get("part", "") == part]
        for row in own:
            row.pop("part", None)
        name = source.get("artifact_fpath") or "{folder}/{split}-00000-of-00001.parquet"
        folder, split = source.get("config", "data"), source.get("split", "train")
        name = name.replace("{folder}", folder).replace("{split}", split).replace("{part}", part)
        if own:
            files[name] = encode(name, own)


def write_url_files(folder: Path, definition: Definition, rows: Rows) -> dict[str, Any]:
    """The source of a definition whose files lie in a folder, and have no checksum."""
    source = dict(definition.source)
    name = source.get("file") or source["url"].rpartition("/")[2]
    for part in source.get("parts") or [""]:
        own = [dict(row) for row in rows if row.get("part", "") == part]
        for row in own:
            row.pop("part", None)
        is_bare = "columns" in source
        raw = as_csv(own, "\t", has_header=False) if is_bare else encode(name, own)
        path = folder / name.replace("{part}", part).removeprefix(f"{source.get('file')}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        if source.get("file"):
            with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
                archive.writestr(source["file"], raw)
    end = "archive.zip" if source.get("file") else name
    source["url"] = f"{folder.as_uri()}/{end}"
    source.pop("sha256", None)
    if "parts" in source:
        source["parts"] = dict.fromkeys(source["parts"])
    return source
