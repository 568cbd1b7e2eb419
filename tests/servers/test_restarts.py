"""How often a process that ends again and again is started."""

import asyncio
from typing import Any

import pytest

from rollout_kit.api.testing import run_virtual
from rollout_kit.launch.output import BEGINS, Output
from rollout_kit.launch.supervise import Supervisor, Terms


class Brief:
    """A child that has ended already."""

    pid, ending, is_running = 1, "ended", False

    async def wait(self) -> None:
        await asyncio.sleep(0)

    read_rest = end = wait


class Dying(Supervisor):
    def __init__(self, output: Output) -> None:
        super().__init__("it", Terms(max_restarts=5))
        self.output = output

    @property
    def has_begun(self) -> bool:
        return self.output.has_begun

    async def spawn(self) -> Any:
        return Brief()

    async def is_ready(self) -> bool:
        return False

    def tell(self, line: str) -> None:
        pass

    def last_words(self) -> list[str]:
        return []


@pytest.mark.parametrize(("begins", "restarts"), [(False, 4), (True, 29)])
def test_a_server_that_dies_of_its_first_requests_is_started_more_often(
    begins: bool, restarts: int
) -> None:
    """Requests that wait at its socket may kill it before anybody has seen it ready."""
    shown: list[str] = []
    output = Output("it", show=lambda label, line: shown.append(line))
    if begins:
        output.take(BEGINS.encode() + b"\n")
    process = Dying(output)

    async def main() -> None:
        await process.start()
        assert "given up" in await process.keep()

    run_virtual(main())
    assert process.restarts == restarts and not shown
    output.renew()
    assert not output.has_begun
