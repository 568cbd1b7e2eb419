"""Fixtures of every test."""

from pathlib import Path

import pytest
from support import Bench

from rollout_kit.testing import OVERS, Over


@pytest.fixture(params=OVERS)
def over(request: pytest.FixtureRequest) -> Over:
    """Each transport in turn: a behaviour must be the same over all of them."""
    return request.param


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have measured, as a table."""
    measured = [
        (name, value)
        for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
        for name, value in report.user_properties
        if report.when == "call"
    ]
    if measured:
        terminalreporter.section("measured")
        width = max(len(name) for name, _ in measured)
        for name, value in measured:
            terminalreporter.write_line(f"{name:<{width}}  {value}")
