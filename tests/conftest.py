"""Fixtures of every test."""

import gc
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import Bench

from rollout_kit.api.testing import OVERS, Over
from rollout_kit.collecting import history
from rollout_kit.serving.transport.loop import GC_THRESHOLDS

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

# in each process numpy would start threads for large matrices, and there are none
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

FIRST = (
    "tests/project/test_commands.py",
    "responses_api_models/vllm_model/tests/test_vllm_model.py",
    "tests/config/test_placement.py",
    "tests/servers/test_every_server.py",
    "tests/servers/test_audit.py",
    "tests/endpoints/test_hostile_answers.py",
    "responses_api_models/local_model/tests/test_local_model.py",
    "tests/servers/test_supervision.py",
    "tests/collecting/test_cluster.py",
    "tests/collecting/test_arms_commands.py",
    "tests/collecting/test_limiter.py",
    "tests/servers/test_access.py",
    "tests/config/test_nemo_gym.py",
    "resources_servers/reasoning_gym/tests/test_app.py",
    "tests/training/test_buffer.py",
    "tests/collecting/test_reverify.py",
)
"""The files that take longest. Each runs in one process, so none may be the last to begin."""


def pytest_configure(config: pytest.Config) -> None:
    """Of several processes, let each begin to read at another folder. On a fresh checkout pytest
    compiles the tests, which takes long: so each process compiles a part, and finds the rest."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    if worker and config.args == config.getini("testpaths"):
        folders = sorted({path.parent for path in (config.rootpath / "tests").glob("*/test_*.py")})
        folders = [*map(str, folders), *config.args[1:]]
        first = len(folders) * worker // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        config.args = folders[first:] + folders[:first]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {config.rootpath / name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: (places.get(item.path, len(places)), item.path))


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of tests are found by tests only, and not by commands of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_look_at_the_checkout() -> Iterator[None]:
    """A collection in this process asks git for the state of the folder only if no earlier has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "git_state", cache(history.git_state))
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
