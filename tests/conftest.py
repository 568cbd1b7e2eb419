"""Fixtures of every test."""

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import Bench

from rollout_kit.testing import OVERS, Over
from rollout_kit.transport.loop import GC_THRESHOLDS

gc.set_threshold(*GC_THRESHOLDS)  # as in a run: what the files of tests import stays

# no example fails because the machine is slow
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

IN_MEMORY, ROOMY = Path("/dev/shm"), 4 << 30

if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ROOMY:
    # files of tests are forced to disk thousands of times
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))

# in each process pydantic would look for plugins in all that is installed, and there are none
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

FIRST = (
    "tests/servers/test_every_server.py",
    "tests/servers/test_supervision.py",
    "responses_api_models/vllm_model/tests/test_vllm_model.py",
    "tests/config/test_placement.py",
    "tests/project/test_commands.py",
    "tests/servers/test_audit.py",
    "tests/collecting/test_limiter.py",
    "tests/project/test_writing.py",
    "tests/project/test_readme.py",
    "tests/servers/test_access.py",
    "tests/config/test_planted_secret.py",
    "responses_api_models/local_model/tests/test_local_model.py",
    "tests/project/test_wheel.py",
    "resources_servers/reasoning_gym/tests/test_app.py",
    "tests/collecting/test_chaos.py",
    "tests/project/test_quickstart.py",
    "responses_api_models/simulated_model/tests/test_rehearsal.py",
)
"""The files that take longest. Each runs in one process, so none may be the last to begin."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {config.rootpath / name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of tests are found by tests only, and not by commands of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


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
