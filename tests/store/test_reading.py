"""Files that a user names and that are none, or have a line without an end."""

import gzip
import io
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from support import HANG_S

from rollout_kit.errors import ConfigError
from rollout_kit.reading import MAX_LINE, PIECE, LineTooLong, iterate_lines, read_lines, read_whole
from rollout_kit.serving.transport.cassette import Cassette, Tapes
from rollout_kit.store.arms.template import read_yaml
from rollout_kit.store.input import input_file, number_lines
from rollout_kit.store.outputs import is_output
from rollout_kit.store.rollouts import load
from rollout_kit.store.scan import check_form

ROW = b'{"responses_create_params": {"input": "hi"}}\n'


def consume(lines: Iterable[object]) -> None:
    for _ in lines:
        pass


READERS: dict[str, Callable[[Path], object]] = {
    "input": lambda path: consume(number_lines(path)),
    "output": lambda path: consume(read_lines(path)),
    "load": lambda path: consume(load(path)),
}

READERS_OF_STARTS: dict[str, Callable[[Path], object]] = {
    "form": check_form,
    "kind": is_output,
    "text": lambda path: read_yaml(path, "prompt_config"),
    "cassette": lambda path: Cassette(Tapes(replay=str(path.parent))),
}


@pytest.mark.parametrize("name", sorted(READERS | READERS_OF_STARTS))
def test_a_device_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"calls\.jsonl: is a device, and no file"):
        (READERS | READERS_OF_STARTS)[name](path)


def test_a_socket_is_refused_and_the_null_device_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("rows.jsonl")
        with pytest.raises(ConfigError, match="is a socket"):
            consume(number_lines(Path("rows.jsonl")))
    assert [*number_lines(Path(os.devnull))] == []


def write_endless(path: Path, *, size: int = MAX_LINE + 2 * PIECE) -> None:
    """Two rows, and a line of zeros that needs no place on disk."""
    if path.suffix == ".gz":
        with gzip.open(path, "wb", compresslevel=1) as packed:
            packed.write(ROW + ROW)
            for _ in range(size // PIECE):
                packed.write(bytes(PIECE))
        return
    with path.open("wb") as stream:
        stream.write(ROW + ROW)
        stream.truncate(size + 2 * len(ROW))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_a_line_without_an_end_is_named(name: str, tmp_path: Path) -> None:
    write_endless(tmp_path / name)
    what = rf"{name}: line 3, which begins at byte {2 * len(ROW)}, is longer than 268,435,456 bytes"
    with pytest.raises(ConfigError, match=what):
        consume(number_lines(tmp_path / name))


@pytest.mark.parametrize("reader", ["load", "input"])
def test_a_stored_file_may_have_such_a_line_too(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout_kit.store.rollouts.MAX_STORED", MAX_LINE)
    write_endless(tmp_path / "rollouts.jsonl")
    with pytest.raises(LineTooLong):
        READERS[reader](tmp_path / "rollouts.jsonl")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_no_more_than_the_bound_is_in_memory(name: str, tmp_path: Path) -> None:
    write_endless(tmp_path / name, size=3 * MAX_LINE)
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from rollout_kit.errors import ConfigError\n"
        "from rollout_kit.store.input import number_lines\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: list(number_lines(Path(sys.argv[1])))\n"
        "except ConfigError: pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / name)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert int(done.stdout) << 10 < 1.25 * MAX_LINE


def test_lines_of_any_length_up_to_the_bound_are_whole() -> None:
    sizes = [0, 1, 9, PIECE - 2, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE - 1, 5 * PIECE]
    lines = [b"x" * size + b"\n" for size in sizes] + [b"y" * (2 * PIECE)]
    assert [*iterate_lines(io.BytesIO(b"".join(lines)))] == lines
    assert [*iterate_lines(io.BytesIO(b"x" * PIECE * 2 + b"\n"), 2 * PIECE + 1)]
    for raw in (b"x" * PIECE * 2 + b"\n", b"x" * PIECE * 9):
        with pytest.raises(LineTooLong, match="line 2, which begins at byte 1, is longer than"):
            consume(iterate_lines(io.BytesIO(b"\n" + raw), 2 * PIECE))


def test_a_pipe_is_read_up_to_the_bound(tmp_path: Path) -> None:
    pipe = tmp_path / "63"
    os.mkfifo(pipe)

    def feed(rows: bytes, pieces: int) -> None:
        with suppress(BrokenPipeError), pipe.open("wb") as stream:
            stream.write(rows)
            for _ in range(pieces):
                stream.write(bytes(PIECE))

    feeding = threading.Thread(target=feed, args=(ROW * 3, 0))
    feeding.start()
    with input_file(str(pipe)) as path:
        assert [number for number, _ in number_lines(path)] == [1, 2, 3]
    feeding.join()
    feeding = threading.Thread(target=feed, args=(ROW * 3, 400))
    feeding.start()
    with (
        pytest.raises(ConfigError, match="63: line 4, which begins at byte 135, is longer"),
        input_file(str(pipe)),
    ):
        pass
    feeding.join()


def test_a_text_has_a_bound(tmp_path: Path) -> None:
    with (tmp_path / "prompt.yaml").open("wb") as stream:
        stream.truncate(1 << 30)
    with pytest.raises(ConfigError, match=r"prompt\.yaml: is larger than 67,108,864 bytes"):
        read_whole(tmp_path / "prompt.yaml")
