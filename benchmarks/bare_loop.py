"""The lower bound: POST every row, N in flight, parse the answer, write a line.

    python -m benchmarks.bare_loop report.json http://127.0.0.1:8000/v1 rows.jsonl 128

Tool calls get a constant output, and the row is sent again until the answer is a message.
"""

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import uvloop

from .probe import run_probed

TOOL_OUTPUT = '{"synonym_value":711}'


async def main(url: str, path: str, parallel: int) -> None:
    rows = iter(open(path))  # noqa: ASYNC230, SIM115
    out = open("/dev/null", "w")  # noqa: ASYNC230, SIM115
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def worker() -> None:
            for line in rows:
                row = json.loads(line)
                body = {"model": "fake", **row["responses_create_params"]}
                while True:
                    async with http.post(url + "/responses", json=body) as reply:
                        row["response"] = json.loads(await reply.read())
                    last = row["response"]["output"][-1]
                    if last["type"] != "function_call":
                        break
                    output = {"call_id": last["call_id"], "output": TOOL_OUTPUT}
                    output["type"] = "function_call_output"
                    body["input"] = [*body["input"], *row["response"]["output"], output]
                out.write(json.dumps(row) + "\n")

        await asyncio.gather(*(worker() for _ in range(parallel)))


if __name__ == "__main__":
    report, url, path, parallel = sys.argv[1:]
    uvloop.run(run_probed(main(url, path, int(parallel)), Path(report)))
