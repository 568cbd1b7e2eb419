"""Measure how many answers `reasoning_gym` scores per second, by family.

python -m benchmarks.reasoning_gym [number of answers of each family]
"""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import orjson

from rollout_kit.responses import make_response, message_item
from rollout_kit.serving import registry
from rollout_kit.testing import making, mount
from rollout_kit.transport.loop import run
from rollout_kit.types import JsonObject

FAMILIES = ("basic_arithmetic", "spell_backward", "word_ladder", "countdown", "puzzle24")
FAMILIES += ("polynomial_multiplication", "simple_integration", "spiral_matrix", "number_sorting")

GENERATE = Path(__file__).parents[1] / "resources_servers/reasoning_gym/generate.py"

IN_FLIGHT = 16


def generate(size: int) -> dict[str, list[JsonObject]]:
    command = [sys.executable, str(GENERATE), *FAMILIES, "--size", str(size)]
    lines = subprocess.run(command, capture_output=True, check=True).stdout.splitlines()
    found: dict[str, list[JsonObject]] = {}
    for row in map(orjson.loads, lines):
        found.setdefault(row["metadata"]["source_dataset"], []).append(row)
    return found


async def main(num_answers: int = 200) -> None:
    places = asyncio.Semaphore(IN_FLIGHT)
    server = registry.load("resources_servers", "reasoning_gym")
    async with mount({"reasoning_gym": making(server)}) as peers:

        async def verify(row: JsonObject) -> None:
            answer = f"<answer>{row['answer'] or '1'}</answer>"
            async with places:
                asked = {**row, "response": make_response("gold", [message_item(answer)], None)}
                await peers.call("reasoning_gym", "/verify", asked, dict)

        for family, rows in generate(num_answers).items():
            await asyncio.gather(*map(verify, rows[:IN_FLIGHT]))  # warm up
            began = time.perf_counter()
            await asyncio.gather(*map(verify, rows))
            print(
                f"{family:28} {len(rows) / (time.perf_counter() - began):6.0f} a second", flush=True
            )


if __name__ == "__main__":
    run(main(*map(int, sys.argv[1:])))
