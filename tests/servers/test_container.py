"""The sandbox in a container. What needs an engine runs where ROLLOUT_KIT_CONTAINER names an
image."""

import asyncio
import json
from pathlib import Path

import pytest
from support import find_container

from rollout_kit import ConfigError, Sandbox, SandboxLimits
from rollout_kit.serving.sandbox.container import Container

ENGINE = """#!/bin/sh
echo "$@" | tr ' ' '\\n' >> {log}
echo "starting" >&2
echo "Error: no such image" >&2
echo "" >&2
echo "Run 'podman run --help' for more information" >&2
exit 125
"""


def start(container: Container, folder: Path) -> None:
    async def run() -> None:
        async with Sandbox(1, container=container, folders=[folder]):
            pass

    asyncio.run(run())


def test_an_engine_that_fails_is_quoted(tmp_path: Path) -> None:
    engine, log = tmp_path / "podman", tmp_path / "log"
    engine.write_text(ENGINE.format(log=log))
    engine.chmod(0o755)
    with pytest.raises(ConfigError) as caught:
        start(Container("some/image", str(engine), ["--memory=1g"]), tmp_path)
    assert "in a container of some/image (podman cannot run a container: Error: no such image)" in (
        str(caught.value)
    )
    words = log.read_text().splitlines()
    protections = {"--network=none", "--read-only", "--cap-drop=all", "--ipc=none", "--memory=1g"}
    assert protections <= set(words)
    assert f"--volume={tmp_path}:/folders/0:ro" in words
    assert words.index("--memory=1g") < words.index("some/image")


def test_without_an_engine_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigError, match="some/image needs podman, docker or apptainer, which is not"
    ):
        start(Container("some/image"), tmp_path)
    with pytest.raises(ConfigError, match="needs nerdctl, which is not installed"):
        start(Container("some/image", "nerdctl"), tmp_path)


LEAVE = """
import os
open("/tmp/file", "w").close()
os.mkdir("/tmp/folder")
if os.fork() == 0:
    os.setsid()
    __import__("time").sleep(100)
"""

LOOK = """
import os
print(sorted(os.listdir("/tmp")), len([each for each in os.listdir("/proc") if each.isdigit()]))
"""


@pytest.mark.skipif(
    (CONTAINER := find_container()) is None or CONTAINER.kind == "apptainer",
    reason="needs an image, and podman or docker",
)
def test_runs_in_a_container_are_protected_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "given.py").write_text("value = 7\n")
    tmp_path.chmod(0o755)  # runs are another user

    async def run() -> None:
        async with Sandbox(1, container=CONTAINER, folders=[tmp_path]) as sandbox:
            assert all(sandbox.protections.holding.values())
            code = "def f(a):\n    import given\n    return a + given.value"
            assert (await sandbox.run(code, function="f", arguments=[1])).value == 8
            assert (await sandbox.run("print(input())", stdin="hi")).stdout == b"hi\n"
            await sandbox.run(LEAVE)
            found = (await sandbox.run(LOOK)).stdout.decode()
            assert found.startswith("[] ") and json.loads(found[3:]) == 2
            limits = SandboxLimits(time_s=0.5)
            assert (await sandbox.run("while True: pass", limits=limits)).end == "time"
            assert (await sandbox.run("import os; os._exit(3)")).end == "died"

    asyncio.run(run())
