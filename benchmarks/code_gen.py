"""Measure how many solutions `code_gen` verifies per second.

python -m benchmarks.code_gen [number of solutions] [tests of each]
"""

import asyncio
import sys
import time

from rollout_kit.api.testing import making, mount
from rollout_kit.responses import make_response, message_item
from rollout_kit.serving import registry
from rollout_kit.serving.transport.loop import run
from rollout_kit.types import JsonObject

SOLUTION = "```python\nprint(sum(map(int, input().split())))\n```"

IN_FLIGHT = 32


def request(number: int, num_tests: int) -> JsonObject:
    inputs = [f"{number} {test}\n" for test in range(num_tests)]
    outputs = [f"{number + test}\n" for test in range(num_tests)]
    return {
        "responses_create_params": {"input": "What is their sum?"},
        "verifier_metadata": {"unit_tests": {"inputs": inputs, "outputs": outputs}},
        "response": make_response("gold", [message_item(SOLUTION)], None),
    }


async def main(num_solutions: int = 1000, num_tests: int = 1) -> None:
    server = registry.load("resources_servers", "code_gen")
    places = asyncio.Semaphore(IN_FLIGHT)
    async with mount({"code_gen": making(server)}) as peers:

        async def verify(number: int) -> float:
            async with places:
                asked = request(number, num_tests)
                return (await peers.call("code_gen", "/verify", asked, dict))["reward"]

        await asyncio.gather(*(verify(number) for number in range(IN_FLIGHT)))  # warm up
        began = time.perf_counter()
        rewards = await asyncio.gather(*(verify(number) for number in range(num_solutions)))
        took_s = time.perf_counter() - began
    assert rewards == [1.0] * num_solutions
    each = "one test" if num_tests == 1 else f"{num_tests} tests"
    print(f"{num_solutions} solutions, {each} each: {num_solutions / took_s:.0f} a second")


if __name__ == "__main__":
    run(main(*map(int, sys.argv[1:])))
