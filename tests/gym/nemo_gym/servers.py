"""Servers as NeMo Gym describes them: configuration from the environment, one app on a port of its
own, a session in a signed cookie that each reply renews."""

import json
import os
from typing import Any
from uuid import uuid4

import aiohttp
import ray
import uvicorn
import yaml
from fastapi import FastAPI, HTTPException, Request, Response
from starlette.middleware.sessions import SessionMiddleware

CONFIG = yaml.safe_load(os.environ.get("NEMO_GYM_CONFIG_DICT", "{}"))
NAME = os.environ.get("NEMO_GYM_CONFIG_PATH", "")


def block(name: str) -> dict[str, Any]:
    [kind] = CONFIG[name].values()
    [settings] = kind.values()
    return settings


class Server:
    """One server, with its own block as `config`."""

    def __init__(self) -> None:
        self.config = block(NAME)
        self.app = FastAPI()

        @self.app.middleware("http")
        async def keep_session(request: Request, call_next: Any) -> Response:
            request.session["session_id"] = request.session.get("session_id", str(uuid4()))
            return await call_next(request)

        cookie = f"{type(self).__name__}___{NAME}"
        self.app.add_middleware(SessionMiddleware, secret_key=cookie, session_cookie=cookie)
        self.app.get("/")(self.alive)

    async def alive(self) -> dict[str, str]:
        return {"status": "ok"}

    @classmethod
    def run_webserver(cls) -> None:
        if not ray.is_initialized():
            ray.init()
        server = cls()
        uvicorn.run(app=server.app, host=server.config["host"], port=server.config["port"])


class ResourcesServer(Server):
    """Subclasses write `verify`; those with state also `seed_session` and their tools."""

    def __init__(self) -> None:
        super().__init__()
        self.app.post("/seed_session")(self.seed_session)
        self.app.post("/verify")(self.verify)
        self.app.post("/aggregate_metrics")(aggregate)

    async def seed_session(self, body: dict[str, Any]) -> dict[str, Any]:
        return {}

    async def verify(self, body: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError


class Agent(Server):
    """Subclasses write `run`."""

    def __init__(self) -> None:
        super().__init__()
        self.app.post("/run")(self.run)
        self.app.post("/aggregate_metrics")(aggregate)

    async def run(self, body: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError


async def aggregate(body: dict[str, Any]) -> dict[str, Any]:
    rewards = [row["reward"] for row in body["verify_responses"]]
    mean = {"mean/reward": sum(rewards) / len(rewards)}
    return {"agent_metrics": mean, "key_metrics": mean, "group_level_metrics": []}


async def post(
    server: str, path: str, body: Any, cookies: dict[str, str]
) -> tuple[str, dict[str, str]]:
    """The text of a reply, and its cookies: only those, as its agents keep them."""
    own = block(server)
    url = f"http://{own['host']}:{own['port']}{path}"
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.post(url, json=body, cookies=cookies) as reply,
    ):
        text = await reply.text()
        if reply.status >= 400 and path in ("/seed_session", "/verify", "/v1/responses"):
            raise HTTPException(500, f"{server}{path} answered {reply.status}: {text}")
        return text, {name: morsel.value for name, morsel in reply.cookies.items()}


def said(response: dict[str, Any]) -> str:
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in messages[-1:] for part in item["content"])


__all__ = ["Agent", "ResourcesServer", "Server", "json", "post", "said"]
