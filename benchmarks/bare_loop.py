"""The lower bound: POST every row, N in flight, parse the answer, write a line.

    python -m benchmarks.bare_loop report.json http://127.0.0.1:8000/v1 rows.jsonl 128
    python -m benchmarks.bare_loop … --json orjson --tools http://127.0.0.1:8001

Tool calls get a constant output, or one that is fetched from `--tools`. The row is sent again with
its whole history until the answer is a message.
"""

import argparse
import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop

from .probe import run_probed
from .work import TOOL_OUTPUT

AS_JSON = {"content-type": "application/json"}

Dumps = Callable[[Any], bytes]
Loads = Callable[[bytes], Any]
CODECS: dict[str, tuple[Dumps, Loads]] = {
    "json": (lambda value: json.dumps(value).encode(), json.loads),
    "orjson": (orjson.dumps, orjson.loads),
}


async def main(args: argparse.Namespace) -> None:
    dumps, loads = CODECS[args.json]
    rows = iter(open(args.rows, "rb"))  # noqa: ASYNC230, SIM115
    out = open("/dev/null", "wb")  # noqa: ASYNC230, SIM115

    async def post(url: str, body: Any) -> bytes:
        async with http.post(url, data=dumps(body), headers=AS_JSON) as reply:
            return await reply.read()

    async def call(item: dict[str, Any]) -> str:
        if not args.tools:
            return TOOL_OUTPUT
        return (await post(f"{args.tools}/{item['name']}", loads(item["arguments"]))).decode()

    async def worker() -> None:
        for line in rows:
            row = loads(line)
            body = {"model": "fake", **row["responses_create_params"]}
            while True:
                row["response"] = loads(await post(args.url + "/responses", body))
                calls = [x for x in row["response"]["output"] if x["type"] == "function_call"]
                if not calls:
                    break
                body["input"] = [*body["input"], *row["response"]["output"]]
                for item in calls:
                    output = {"call_id": item["call_id"], "output": await call(item)}
                    body["input"].append({**output, "type": "function_call_output"})
            out.write(dumps(row) + b"\n")

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*(worker() for _ in range(args.parallel)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("report", type=Path)
    parser.add_argument("url")
    parser.add_argument("rows")
    parser.add_argument("parallel", type=int)
    parser.add_argument("--json", choices=CODECS, default="json", help="what reads and writes JSON")
    parser.add_argument("--tools", default="", help="URL of tools; without it they say a constant")
    args = parser.parse_args()
    uvloop.run(run_probed(main(args), args.report))
