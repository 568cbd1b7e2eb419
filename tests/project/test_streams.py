"""How commands end: streams that are closed or full, paths that are refused, an early Ctrl-C."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from endpoint import endpoint, says
from support import HANG_S, asked
from workplace import ROOT, Workplace

from rollout_kit.serving.transport import loop


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    with endpoint(says(asked)) as model:
        yield Workplace(tmp_path, model)


def run_in_shell(
    folder: Path, command: str, argv: list[str], redirection: str, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command with the redirection of its streams written as in a shell."""
    code = f"from rollout_kit.commands import main; main('ng_{command}')"
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {redirection}', "bash", sys.executable, "-c", code, *argv],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        timeout=HANG_S,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "redirection", [">&-", ">&- 2>&- <&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>/dev/full"]
)
def test_a_collection_needs_no_standard_output(
    workplace: Workplace, redirection: str, unbuffered: str
) -> None:
    workplace.tasks(5)
    done = run_in_shell(
        workplace.folder,
        "collect_rollouts",
        workplace.collect_argv(),
        redirection,
        PYTHONUNBUFFERED=unbuffered,
    )
    assert done.returncode == 0, done.stderr
    assert len(workplace.lines()) == 5
    assert b"Traceback" not in done.stderr
    if redirection == ">/dev/full":
        assert done.stderr.count(b"cannot print: No space left on device") == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_result_that_cannot_be_printed_is_an_error(tmp_path: Path, unbuffered: str) -> None:
    done = run_in_shell(tmp_path, "version", [], ">/dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    assert done.stderr == b"error: cannot write or print: No space left on device\n"


def test_an_encoding_without_a_character_shows_another(workplace: Workplace) -> None:
    workplace.tasks(5)
    argv = workplace.collect_argv()
    done = run_in_shell(
        workplace.folder, "collect_rollouts", argv, "", PYTHONIOENCODING="ascii", PYTHONUTF8="0"
    )
    assert done.returncode == 0, done.stderr
    assert b"Plan: 5 tasks ? 1 repeat = 5 rollouts" in done.stdout


def test_a_path_of_which_a_part_is_a_file_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "resources_servers").touch()
    argv = ["+entrypoint=resources_servers/mine"]
    done = run_in_shell(tmp_path, "init_resources_server", argv, "")
    assert done.returncode == 1
    assert done.stderr == b"error: resources_servers/mine: Not a directory\n"


def test_an_interrupt_while_a_command_is_imported_shows_no_traceback(tmp_path: Path) -> None:
    code = "import rollout_kit.commands; raise KeyboardInterrupt"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_an_interrupt_before_the_loop_runs_leaves_no_coroutine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt() -> asyncio.AbstractEventLoop:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_new_loop", interrupt)
    work = asyncio.sleep(0)
    with pytest.raises(KeyboardInterrupt):
        loop.run(work)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
