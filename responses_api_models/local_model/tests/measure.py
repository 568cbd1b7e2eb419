"""What the shipped model does: accuracy, rollouts per second, start, memory.

    python responses_api_models/local_model/tests/measure.py [--num-threads 2]

Not a test: speed depends on the machine. Everything goes through `LocalModel.responses`.
"""

import argparse
import asyncio
import random
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

from rollout_kit.responses import output_text
from rollout_kit.serving import registry

QUESTION = "Which number is largest? A) {0} B) {1} C) {2} D) {3}"


@dataclass(frozen=True, slots=True)
class Measured:
    accuracy: float
    rollouts_per_s: float


def questions(num_questions: int, below: int, seed: int) -> list[tuple[str, str]]:
    """Multiple choice with its right letter; the numbers of a question are distinct."""
    rng = random.Random(seed)
    drawn = [rng.sample(range(below), 4) for _ in range(num_questions)]
    return [(QUESTION.format(*xs), "ABCD"[xs.index(max(xs))]) for xs in drawn]


async def measure(
    model: Any, *, below: int, temperature: float, num_questions: int = 1000, seed: int = 0
) -> Measured:
    asked = questions(num_questions, below, seed)
    start = time.perf_counter()
    responses = await asyncio.gather(
        *(model.responses({"input": text, "temperature": temperature}) for text, _ in asked)
    )
    took_s = time.perf_counter() - start
    pairs = zip(responses, asked, strict=True)
    num_right = sum(output_text(response).endswith(right) for response, (_, right) in pairs)
    return Measured(num_right / num_questions, num_questions / took_s)


async def main(num_threads: int) -> None:
    start = time.perf_counter()
    cls: Any = registry.load("responses_api_models", "local_model")
    model = cls(cls.Config(num_threads=num_threads), peers=None, name="policy_model")
    await model.start()
    report = [f"import and start: {time.perf_counter() - start:.2f} s"]
    for below in (100, 1000):
        for temperature in (0.0, 1.0):
            got = await measure(model, below=below, temperature=temperature)
            report.append(
                f"numbers < {below}, temperature {temperature:g}: "
                f"accuracy {got.accuracy:.3f}, {got.rollouts_per_s:.0f} rollouts/s"
            )
    await model.stop()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write("\n".join([*report, f"peak memory: {peak_mib:.0f} MiB"]) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-threads", type=int, default=1)
    asyncio.run(main(parser.parse_args().num_threads))
