"""What servers print: masked, kept, cut off at a size, and never in the way."""

from pathlib import Path

import pytest

from rollout_kit.errors import ConfigError
from rollout_kit.launch import output
from rollout_kit.launch.output import Output


def test_lines_are_masked_kept_and_shown(tmp_path: Path) -> None:
    shown: list[tuple[str, str]] = []
    path = tmp_path / "logs/run/echo.log"
    took = Output("echo", path=path, secrets={"sk-0123456"}, show=lambda *line: shown.append(line))
    took.take(b"the key is sk-0123456\n")
    took.take(b"\xff broken \n")
    took.close()
    assert path.read_text() == "the key is ****\n� broken\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert shown == [("echo", "the key is ****"), ("echo", "� broken")]
    assert list(took.tail) == ["the key is ****", "� broken"]


def test_a_log_that_grows_too_large_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MAX_FILE_BYTES", 100)
    path = tmp_path / "echo.log"
    took = Output("echo", path=path)
    for number in range(100):
        took.take(f"line {number}".encode())
    took.close()
    assert path.stat().st_size <= 100 and (tmp_path / "echo.log.1").stat().st_size <= 100
    assert path.read_text().endswith("line 99\n")


def test_a_log_that_cannot_be_written_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot write the log .*\+log_dir=null"):
        Output("echo", path=tmp_path / "logs/echo.log")


def test_a_full_disk_takes_no_server_down() -> None:
    took = Output("echo", path=Path("/dev/full"))
    took.take(b"a line")
    took.close()
    assert list(took.tail) == ["a line"]
