"""The bar on terminals of any width: what is shown is whole."""

import fcntl
import io
import os
import re
import struct
import termios
import threading

import pytest
from support import made
from tqdm import tqdm

from rollout_kit.collecting.pacing.bill import Bill
from rollout_kit.commands.progress import Progress
from rollout_kit.errors import ModelError
from rollout_kit.session import Spent
from rollout_kit.types import Failure, Key, Rollout

ROLLOUT_S = 0.25
"""Each rollout finishes so long after the one before it."""

KEY = Key("t", "a", "", 0)


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
    line = {"reward": 0.5, "usage": {"output_tokens": 100}}
    bill = Bill(Spent(total, 0, usd), total)
    with os.fdopen(terminal, "w", buffering=1) as err:
        shown = Progress(out=io.StringIO(), err=err, bill=bill, clock=clock)
        shown.start(total, 0)
        for number in range(total):
            now += ROLLOUT_S
            is_failed = number >= total - failed
            outcome = Failure(KEY, 0, ModelError("no")) if is_failed else Rollout(*made(KEY, line))
            shown.update([outcome], in_flight=64)
        shown.close()
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
