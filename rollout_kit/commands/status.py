"""ng_status: show health and load of the servers of a running ng_run."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import orjson

from ..config.keys import StatusConfig
from ..errors import PeerError
from ..launch.head_client import HeadClient, found_head
from ..serving.transport.access import bearer, token_for
from ..types import JsonObject
from . import entry
from .entry import print_table

ASK_S = 5.0
"""Time limit for `/health`; a slower server is reported as not answering."""

CHANGED = "(files changed since it was started)"

COLUMNS = ("name", "health", "pid", "uptime", "restarts", "load", "verifier", "url")


def main(words: list[str]) -> int:
    return asyncio.run(_status(entry.load(words, StatusConfig).command))


async def _status(command: StatusConfig) -> int:
    """Return 0 if every server is healthy, else 2."""

    async with found_head(command.head_server, command.auth_token) as head:
        if command.web:
            return await _serve(head, command.port)
        found = await _query_all(head)
    if command.json_output:
        print(json.dumps({"url": head.url, "run_id": head.run_id, "servers": found}))
    else:
        print_table([COLUMNS, *map(_format_cells, found)])
    return 0 if all(each["health"] == "ok" for each in found) else 2


async def _serve(head: HeadClient, port: int) -> int:
    """Serve the page until Ctrl-C."""
    from ..collecting.live.client import Here
    from ..collecting.live.site import open_page

    def say(text: str, **fields: Any) -> None:
        print(f"{text}  (stop with Ctrl-C)", flush=True)

    with suppress(asyncio.CancelledError):
        here = Here(head.url, lambda: _query_all(head))
        async with open_page(here, "page of ng_status", port, "port", say):
            await asyncio.Event().wait()
    return 0


async def _query_all(head: HeadClient) -> list[JsonObject]:
    """Query every process of the servers."""
    listed = await head.instances()
    workers = [(each, worker) for each in listed for worker in each["workers"]]
    return await asyncio.gather(*(_query(each, worker, head) for each, worker in workers))


async def _query(server: JsonObject, worker: JsonObject, head: HeadClient) -> JsonObject:
    """Query one server process."""

    health, load, about = worker["state"], {}, {}
    if worker["url"] and health == "ready":
        asks = server["asks_token"] and head.token
        headers = bearer(token_for(server["name"], head.token) if asks else None)
        try:
            reply = await head.client.get(
                f"{worker['url']}/health", headers=headers, timeout_s=ASK_S
            )
            health = "ok" if reply.status == 200 else f"answers {reply.status}"
            answer = orjson.loads(reply.raw)
            if isinstance(answer, dict) and isinstance(answer.get("load"), dict):
                load = answer["load"]
            if isinstance(answer, dict) and isinstance(answer.get("server"), dict):
                about = answer["server"]
        except PeerError as error:
            health = f"no answer: {error}"
        except ValueError:
            health = "answer is not JSON"
    elif health == "ready":
        health = "ok"
    return {
        "name": worker["label"],
        "type": server["server_type"],
        "implementation": server["implementation"],
        "health": health,
        "pid": worker["pid"],
        "uptime_s": worker["uptime_s"],
        "restarts": worker["restarts"],
        "load": load,
        "verifier": about.get("verifier", ""),
        "verifier_parts": about.get("verifier_parts", {}),
        "changed_files": about.get("changed_files", []),
        "url": worker["url"],
        "place": worker.get("place", ""),
    }


def _format_cells(one: JsonObject) -> tuple[str, ...]:
    busy = {name.replace("_", " "): value for name, value in one["load"].items() if value}
    load = ", ".join(name if value is True else f"{name} {value}" for name, value in busy.items())
    uptime = "-" if one["uptime_s"] is None else _format_duration(one["uptime_s"])
    return (
        one["name"],
        one["health"],
        str(one["pid"] or "-"),
        uptime,
        str(one["restarts"]),
        load or ("idle" if one["health"] == "ok" else "-"),
        " ".join([one["verifier"] or "-", *([CHANGED] if one["changed_files"] else [])]),
        " ".join([one["url"] or "in ng_run", *([f"on {one['place']}"] if one["place"] else [])]),
    )


def _format_duration(seconds: float) -> str:
    """Format with the two largest units: `3 d 4 h`, `12 min 5 s`."""
    parts = []
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or parts or name == "s":
            parts.append(f"{int(count)} {name}")
    return " ".join(parts[:2])
