"""The bar on terminals of any width: what is shown is whole. And the lines of a log."""

import fcntl
import io
import os
import re
import struct
import termios
import threading

import pytest
from snapshots import cost, snapshot
from tqdm import tqdm

from rollout_kit.commands.progress import Progress

ROLLOUT_S = 0.25
"""Each rollout finishes so long after the one before it."""


def drawn(
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    total: int = 384,
    failed: int = 0,
    usd: float = 0.0,
) -> str:
    """The last state of the bar on a terminal of this width."""
    now = 0.0

    def clock() -> float:
        return now

    monkeypatch.setattr("tqdm.std.time", clock)
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # no thread that redraws by the real clock
    reader, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    said: list[bytes] = []
    listener = threading.Thread(target=lambda: said.extend(iter(lambda: read(reader), b"")))
    listener.start()
    figures = {"usd": usd, "projected_usd": usd, "priced_usd": usd}
    with os.fdopen(terminal, "w", buffering=1) as err:
        shown = Progress(out=io.StringIO(), err=err)
        for number in range(total + 1):
            now = number * ROLLOUT_S
            num_failed = max(0, number - (total - failed))
            reward = 0.5 if number else None
            run = {"ended": number, "total": total, "failed": num_failed, "reward": reward}
            shown.read(
                snapshot(
                    number=number + 1,
                    state="ended" if number == total else "running",
                    elapsed_s=now,
                    finished=number,
                    this_run=run,
                    counts={"in_flight": 64},
                    speed={"output_tokens_per_s": 400.0, "usd_per_minute": usd},
                    cost=cost(**figures),
                )
            )
    listener.join()
    os.close(reader)
    lines = [each for each in re.split(r"[\r\n]+", b"".join(said).decode()) if each.strip()]
    assert all(len(each) <= columns for each in lines)
    return lines[-1]


def read(terminal: int) -> bytes:
    """What was written; nothing once the writer has gone."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def test_a_wide_terminal_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    said = drawn(160, monkeypatch)
    assert said.startswith("Collecting rollouts: 100%|")
    for part in ("384/384 [", "reward=0.500", "tok/s=", "in flight=64", "failed=0"):
        assert part in said
    assert said.endswith("]")


@pytest.mark.parametrize("columns", [60, 70, 80, 100])
def test_a_narrow_one_shows_less_and_nothing_in_halves(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = drawn(columns, monkeypatch)
    assert said.startswith("Rollouts: 100%|") and said.endswith("]")
    assert "reward=0.500" in said or columns < 70
    whole = re.compile(r"reward=0\.500|tok/s=\d+|in flight=64|failed=0")
    figures = said.rpartition("it/s")[2].strip(", ]")
    assert all(whole.fullmatch(each) for each in figures.split(", ") if each)


def test_failures_stay_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    said = drawn(80, monkeypatch, failed=3)
    assert "reward=0.500" in said and said.endswith("failed=3]")


def test_what_is_spent_is_among_the_last_things_that_a_narrow_one_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = drawn(170, monkeypatch, usd=12.5)
    assert "cost=$12.50→$12.50, $" in said and "/min]" in said
    said = drawn(95, monkeypatch, usd=12.5)
    assert "cost=$12.50→$12.50]" in said and "tok/s" not in said and "/min" not in said


def test_a_log_has_a_line_each_half_minute_and_one_at_the_end() -> None:
    err = io.StringIO()
    shown = Progress(out=io.StringIO(), err=err)
    for second in range(71):
        state = "ended" if second == 70 else "running"
        run = {"earlier": 4, "ended": 4 + second, "total": 104}
        shown.read(snapshot(elapsed_s=float(second), finished=second, this_run=run, state=state))
    assert re.findall(r"(\d+)/104 \[", err.getvalue()) == ["34", "64", "74"]


def test_a_run_in_which_nothing_ended_says_nothing() -> None:
    err = io.StringIO()
    Progress(out=io.StringIO(), err=err).read(snapshot(state="ended"))
    assert err.getvalue() == ""


def test_the_second_run_of_a_command_has_a_bar_of_its_own() -> None:
    """A canary, and the rest."""
    err = io.StringIO()
    shown = Progress(out=io.StringIO(), err=err)
    for _ in range(2):
        for number, second in enumerate((0.0, 31.0), 1):
            shown.read(snapshot(number=number, elapsed_s=second, finished=number))
    assert err.getvalue().count("Collecting rollouts") == 2


def test_a_long_input_gets_its_total_once_it_is_counted() -> None:
    err = io.StringIO()
    shown = Progress(out=io.StringIO(), err=err)
    shown.read(snapshot(elapsed_s=40.0, this_run={"ended": 7}))
    shown.read(snapshot(elapsed_s=80.0, this_run={"ended": 14, "total": 25}))
    first, second = err.getvalue().splitlines()
    assert ": 7it [" in first and "14/25 [" in second
