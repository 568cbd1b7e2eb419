"""Measure how many answers `reasoning_gym` (by family) and `math_with_verify` judge per second.

python -m benchmarks.verdicts [number of answers of each kind]
"""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import orjson

from rollout_kit.api.testing import making, mount
from rollout_kit.responses import make_response, message_item
from rollout_kit.serving import registry
from rollout_kit.serving.transport.loop import run
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


def make_symbolic(size: int) -> list[JsonObject]:
    """Answers that need algebra, all different, as those of a run are."""
    pairs = [
        (r"\frac{{{n}}}{{7}}", r"\frac{{{twice}}}{{14}}"),
        (r"{n}\sqrt{{8}}", r"{twice}\sqrt{{2}}"),
    ]
    pairs += [(r"[{n},\infty)", r"x \ge {n}"), (r"x^2-{n}", r"-{n}+x^2"), ("{n}/3", "{n}*4/12")]
    chosen = [(n, *pairs[n % len(pairs)]) for n in range(2, size + 2)]
    return [
        {
            "responses_create_params": {"input": "?"},
            "expected_answer": expected.format(n=n, twice=2 * n),
            "answer": f"\\boxed{{{answer.format(n=n, twice=2 * n)}}}",
        }
        for n, expected, answer in chosen
    ]


async def measure(name: str, kinds: dict[str, list[JsonObject]]) -> None:
    places = asyncio.Semaphore(IN_FLIGHT)
    server = registry.load("resources_servers", name)
    async with mount({name: making(server)}) as peers:

        async def verify(row: JsonObject) -> None:
            answer = str(row["answer"] or "1")
            answer = answer if "boxed" in answer else f"<answer>{answer}</answer>"
            async with places:
                asked = {**row, "response": make_response("gold", [message_item(answer)], None)}
                await peers.call(name, "/verify", asked, dict)

        for kind, rows in kinds.items():
            await asyncio.gather(*map(verify, rows[:IN_FLIGHT]))  # warm up
            began = time.perf_counter()
            await asyncio.gather(*map(verify, rows))
            rate = len(rows) / (time.perf_counter() - began)
            print(f"{kind:28} {rate:6.0f} a second", flush=True)


async def main(num_answers: int = 200) -> None:
    await measure("math_with_verify", {"math_with_verify": make_symbolic(num_answers)})
    await measure("reasoning_gym", generate(num_answers))


if __name__ == "__main__":
    run(main(*map(int, sys.argv[1:])))
