"""Reads the lines of an input file: plain, compressed, or from a pipe."""

import gzip
import re
import sys
import tempfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO

from ..errors import ConfigError, how_to_install, suggest
from ..reading import MAX_LINE, Lines, check_kind, copy_lines, iterate_lines
from .tables.table_rows import is_table, iterate_rows

FROM_YAML = "yq -o=json -I=0 '.[]'"

OTHER_FORMS = {
    ".yaml": ("YAML", FROM_YAML),
    ".yml": ("YAML", FROM_YAML),
}
"""Suffix → the form of a file, and the command that makes JSON lines of it."""

COMPRESSED = {
    b"\x1f\x8b": ("compressed, but not named .gz", "gunzip <"),
    b"\x28\xb5": ("compressed, but not named .zst", "zstd -dc"),
}
"""First bytes of a file → its form, and the command that makes JSON lines of it."""

HEAD = 1 << 16
"""Bytes of a line that show its form."""

CARRIAGE_RETURN = re.compile(rb"\}\r\s*\{")
"""Between two rows of a file whose lines end with it; no JSON text holds it unescaped."""


def plain_path(path: Path) -> Path:
    """The path without the suffix of its compression."""
    return path.with_suffix("") if path.suffix in (".gz", ".zst") else path


def number_lines(path: Path, skip: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the non-blank lines with their numbers, from 1, without the first `skip` lines;
    ConfigError if reading fails. The rows of a table count as lines, without its head."""
    if is_table(plain_path(path)) and not _holds_json(path):
        return islice(enumerate(_iterate_table(path), 1), skip, None)
    return ((number, raw) for number, _, raw in place_lines(path, skip=skip))


def _holds_json(path: Path) -> bool:
    """Whether a file has lines of JSON, though it has the name of a table."""
    with suppress(OSError, EOFError, zlib.error), _open(path) as stream:
        return stream.read(1) == b"{"
    return False  # reading the table says why


def _iterate_table(path: Path) -> Iterator[bytes]:
    number = 0
    with _explains(path, lambda: number):
        if path.is_dir():
            yield from iterate_rows(path, "", None)
            return
        with _open(path) as stream:
            for raw in iterate_rows(path, plain_path(path).suffix, stream):
                number += 1
                yield raw


def place_lines(
    path: Path, limit: int = MAX_LINE, skip: int = 0
) -> Iterator[tuple[int, int, bytes]]:
    """The same with the offset of each line in the unpacked file. `limit`: bytes of the longest
    line."""
    number = offset = 0
    with _explains(path, lambda: number), _open(path) as stream:
        lines = iterate_lines(stream, limit)
        first = list(islice(lines, 3))
        _check_form(path, [raw[:HEAD] for raw in first if raw.strip()])
        for number, raw in enumerate(chain(first, lines), 1):
            end = offset + len(raw)
            if number == 1 and raw.startswith(BOM_UTF8):  # a byte order mark
                offset, raw = len(BOM_UTF8), raw.removeprefix(BOM_UTF8)
            if number > skip and not raw.isspace():
                yield number, offset, raw
            offset = end


@contextmanager
def _explains(path: Path, lines_read: Callable[[], int]) -> Iterator[None]:
    """ConfigError for a file that is missing or cannot be read to its end."""
    try:
        yield
    except FileNotFoundError:
        if path.is_symlink():
            raise ConfigError(f"{path}: is a link to {path.readlink()}, which is missing") from None
        near = [each.name for each in path.parent.glob("*")] if path.parent.is_dir() else []
        raise ConfigError(f"no input file {path}{suggest(path.name, near)}") from None
    except (OSError, EOFError, zlib.error) as error:
        number = lines_read()
        after = f" after line {number}" if number else ""
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read{after}: {reason}") from None


def _check_form(path: Path, lines: list[bytes]) -> None:
    """ConfigError if a file with these first lines is plainly no JSON lines."""
    begins = [raw.removeprefix(BOM_UTF8).strip() for raw in lines]
    has_returns = bool(begins) and CARRIAGE_RETURN.search(begins[0]) is not None
    if not begins or (begins[0].startswith(b"{") and begins[0] != b"{" and not has_returns):
        return
    if has_returns:
        form, how = "text with carriage returns as line ends", "tr '\\r' '\\n' <"
    elif lines[0].startswith((b"\xff\xfe", b"\xfe\xff")):
        form, how = "UTF-16", "iconv -f UTF-16 -t UTF-8"
    elif (magic := lines[0][:2]) in COMPRESSED:
        form, how = COMPRESSED[magic]
    elif begins[0] == b"[" or begins[0].startswith(b"[{"):
        form, how = "one JSON array", "jq -c '.[]'"
    elif begins[0] == b"{":
        form, how = "JSON that is spread over several lines", "jq -c ."
    elif path.suffix in OTHER_FORMS:
        form, how = OTHER_FORMS[path.suffix]
    elif any(begin.startswith(b"{") for begin in begins):
        return  # only the first lines are malformed
    else:
        raise ConfigError(
            f"{path}: no line at its start is a JSON object, and each line must hold one; it begins"
            f" with {_show(begins[0])}"
        )
    mended = f"{path.stem}_lines.jsonl" if path.suffix == ".jsonl" else f"{path.stem}.jsonl"
    raise ConfigError(
        f"{path}: is {form}, and each line must hold one JSON object: "
        f"{how} {quote(path.name)} > {quote(mended)}"
    )


def _show(raw: bytes) -> str:
    try:
        return repr(raw.decode()[:60])
    except UnicodeDecodeError:
        return "bytes that are no text"


@contextmanager
def _open(path: Path) -> Iterator[Lines]:
    check_kind(path)
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as stream:
            yield stream
    elif path.suffix == ".zst":
        zstd = import_zstd()
        try:
            with zstd.open(path, "rb") as stream:
                yield stream
        except zstd.ZstdError as error:
            raise OSError(str(error)) from None
    else:
        with path.open("rb") as stream:
            yield stream


def import_zstd() -> Any:
    """The module of the standard library, or its backport: both detect truncated files."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"reading .zst needs an extra: {how_to_install('rollout-kit[zst]')}"
        ) from None


@contextmanager
def input_file(path: str, stdin: BinaryIO | None = None) -> Iterator[Path]:
    """The input as a file that can be read twice: standard input (`-`) and pipes are first copied
    to disk."""
    given = Path(path).expanduser()
    if path != "-" and not given.is_fifo():
        yield given
        return
    with tempfile.NamedTemporaryFile(suffix=given.suffix or ".jsonl") as spool:
        with nullcontext(stdin or sys.stdin.buffer) if path == "-" else given.open("rb") as stream:
            copy_lines(path, stream, spool)
        spool.flush()
        yield Path(spool.name)
