"""A hop: an aiohttp server that passes each request on with an aiohttp client, and parses nothing.

python -m benchmarks.hop http://127.0.0.1:8000    # prints its port
"""

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web

MOST_BYTES = 1 << 30


async def main(upstream: str) -> None:
    connector = aiohttp.TCPConnector(limit=0)

    async def forward(request: web.Request) -> web.Response:
        kind = {"content-type": "application/json"}
        raw = await request.read()
        async with http.post(upstream + request.path, data=raw, headers=kind) as reply:
            return web.Response(body=await reply.read(), status=reply.status, headers=kind)

    async with aiohttp.ClientSession(connector=connector) as http:
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post("/{path:.*}", forward)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
