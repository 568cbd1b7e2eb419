"""The part of the fake vLLM that changes weights, as vLLM 0.32.0 does over HTTP.

The weights are a text: that of the file `weights` in the folder that was loaded last, or in that of
an adapter. PLAN's `bad` is a file: while it is there, the servers whose pids it lists (or all, for
`all`) fail to load weights, and are left with mixed ones. `events` receives what was called.
"""

import asyncio
import json
import os
from pathlib import Path

from aiohttp import web


class Weights:
    def __init__(self, plan):
        self.plan = plan
        self.text, self.version, self.adapters = "0", "default", {}
        self.running = asyncio.Event()
        self.running.set()

    async def sampled(self, body):
        """The weights that write a token now; waits while the engine is paused."""
        await self.running.wait()
        return self.adapters.get(body.get("model"), self.text)

    def note(self, what):
        if "events" in self.plan:
            with open(self.plan["events"], "a") as stream:
                stream.write(json.dumps({"pid": os.getpid(), "what": what}) + "\n")

    def is_bad(self):
        bad = Path(self.plan.get("bad", "/nonexistent"))
        return bad.exists() and (str(os.getpid()) in bad.read_text() or "all" in bad.read_text())


def add_routes(app, plan):
    weights = app["weights"] = Weights(plan)

    async def pause(request):
        weights.note(f"pause {request.query.get('mode')}")
        weights.running.clear()
        return web.json_response({"status": "paused"})

    async def resume(request):
        weights.note("resume")
        weights.running.set()
        return web.json_response({"status": "resumed"})

    async def call(request):
        body = await request.json()
        assert body["method"] == "reload_weights" and not weights.running.is_set()
        folder = Path(body["kwargs"]["weights_path"])
        while "slow" in plan and os.path.exists(plan["slow"]):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.005)
        if weights.is_bad():
            weights.text = "mixed"
            return web.json_response({"error": {"message": "no space"}}, status=500)
        if not plan.get("ignores"):
            text = folder / "weights"
            weights.text = text.read_text() if text.exists() else "0"
        weights.note(f"reload {folder.name}")
        return web.json_response({"results": [None]})

    async def name(request):
        weights.version = (await request.json())["new_version"]
        return web.json_response({"success": True})

    async def info(request):
        return web.json_response({"weight_version": weights.version})

    async def check(request):
        return web.json_response({"results": [{"embed": weights.text}]})

    async def load(request):
        body = await request.json()
        if weights.is_bad():
            return web.json_response({"error": {"message": "no such adapter"}}, status=404)
        weights.adapters[body["lora_name"]] = (Path(body["lora_path"]) / "weights").read_text()
        weights.note(f"load {body['lora_name']}")
        return web.Response(text="Success: added successfully.")

    async def unload(request):
        name = (await request.json())["lora_name"]
        weights.adapters.pop(name)
        weights.note(f"unload {name}")
        return web.Response(text="Success: removed successfully.")

    async def sleep(request):
        weights.note(f"sleep {request.query['level']}")
        return web.Response()

    async def wake(request):
        weights.note("wake")
        return web.Response()

    app.router.add_post("/v1/load_lora_adapter", load)
    app.router.add_post("/v1/unload_lora_adapter", unload)
    if os.environ.get("VLLM_SERVER_DEV_MODE") != "1":
        return
    app.router.add_get("/weight_info", info)
    handlers = {"pause": pause, "resume": resume, "collective_rpc": call, "sleep": sleep}
    handlers |= {"update_weight_version": name, "weight_checker": check, "wake_up": wake}
    for path, handler in handlers.items():
        app.router.add_post(f"/{path}", handler)
