"""The same lines without the toolkit around them: what a rollout costs at least with its parts.

    python -m benchmarks.straight          # CPU of a rollout, × the bare loop

Each row is checked, sent with our HTTP client, verified with mcqa's own code, and written as a
line. There are no servers, sessions, limits, retries, plan, index or metrics.
"""

import asyncio
import os
import statistics
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import orjson
import uvloop

from rollout_kit.responses import output_text
from rollout_kit.serving import registry
from rollout_kit.serving.transport.http import HttpClient

from . import sides, work
from .endpoint import Setting
from .measure import measure, running_endpoint
from .probe import run_probed

NUM_ROWS, PAIRS, IN_FLIGHT = 6_000, 5, (16, 128)


def main() -> None:
    with TemporaryDirectory() as name, running_endpoint() as port:
        folder = Path(name)
        rows = work.write_rows(folder / "rows.jsonl", NUM_ROWS)
        for parallel in IN_FLIGHT:
            bare = sides.bare(port, rows, parallel)
            straight = ["benchmarks.straight" if "bare_loop" in word else word for word in bare]
            setting = Setting("short", 0.0, parallel)
            ratios = []
            for _ in range(PAIRS):
                costs = [measure(each, folder, port, setting) for each in (straight, bare)]
                ratios.append(costs[0].flow_cpu_s / costs[1].flow_cpu_s)
            print(f"{parallel} in flight: {statistics.median(ratios):.2f} × bare", flush=True)


async def collect(url: str, path: str, parallel: int) -> None:
    module = sys.modules[registry.load("resources_servers", "mcqa").__module__]
    http, rows = HttpClient(), enumerate(open(path, "rb"))  # noqa: ASYNC230, SIM115
    output = os.open("straight.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    await asyncio.gather(*(_work(url, rows, http, module, output) for _ in range(parallel)))
    await http.close()


async def _work(
    url: str, rows: Iterator[tuple[int, bytes]], http: HttpClient, mcqa: Any, output: int
) -> None:
    for number, raw in rows:
        row = orjson.loads(raw)
        canonical = orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
        task_id = blake2b(canonical, digest_size=8).hexdigest()
        mcqa.McqaVerifyRequest.model_validate({"response": {}, **row})
        began = perf_counter()
        body = orjson.dumps({"model": "fake", **row["responses_create_params"]})
        reply = await http.post(f"{url}/responses", body, headers={"authorization": "Bearer none"})
        answered = perf_counter()
        response = orjson.Fragment(orjson.dumps(orjson.loads(reply.raw)))
        sent = orjson.loads(orjson.dumps({**row, "response": response}))
        asked = mcqa.McqaVerifyRequest.model_validate(sent)
        text = output_text(asked.response)[-mcqa.TEXT_LIMIT :].strip()
        answer = mcqa.extract(text, asked.options or [], asked.grading_mode)
        block = {
            "task_id": task_id,
            "model": asked.response["model"],
            "model_s": round(answered - began, 6),
            "verify_s": round(perf_counter() - answered, 6),
        }
        line = {
            **{"kind": "rollout", "schema": 1, "_ng_task_index": number},
            "reward": float(answer == asked.expected_answer),
            "extracted_answer": answer,
            **{"usage": asked.response["usage"], "rollout": block},
            **{**row, "response": response},
        }
        os.write(output, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        report, url, path, parallel = sys.argv[1:]
        uvloop.run(run_probed(collect(url, path, int(parallel)), Path(report)))
