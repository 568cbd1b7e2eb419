"""Runs the `app.py` of a server that is written for NeMo Gym, unchanged, under its interpreter.

The process is one of ours: it listens on a socket that the parent has bound, answers `/health`, is
reached only by the user who runs it, and ends with its parent. Its configuration comes through
standard input. This file imports nothing of this toolkit, which its interpreter need not have.
"""

import ctypes
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
import threading
import types
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG = 1
"""prctl(2): set the signal that this process receives when its parent dies."""

LOOPBACK = "127.0.0.1"

WITHOUT_STATE = frozenset({"/seed_session", "/verify", "/aggregate_metrics"})
"""Routes of a server that has no tools."""


def main() -> None:
    plan = json.loads(sys.stdin.buffer.readline())
    end_with_parent()
    os.environ.update(plan["env"])
    os.chdir(plan["folder"])
    sys.path[:1] = [plan["folder"], plan["root"]]  # in place of this file's folder
    if plan["starts_ray"]:
        start_ray()
    else:
        sys.modules["ray"] = NoRay.make()
    import_metrics()
    serve_on(socket.socket(fileno=plan["socket"]), plan)
    sys.argv = [plan["app"]]
    runpy.run_path(plan["app"], run_name="__main__")


def end_with_parent() -> None:
    """End this process and those that it started when the parent has ended."""
    with suppress(OSError, AttributeError):  # not Linux: only the end of standard input tells
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    while os.read(0, 1 << 16):
        pass  # lines about servers that moved: its clients have fixed addresses
    os.killpg(0, signal.SIGTERM)


class NoRay(types.ModuleType):
    """Stands for Ray in servers that never call it: NeMo Gym's base starts it for all of them. A
    start then takes 4 s and 0.3 GB instead of 25 s and 2 GB."""

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return importlib.metadata.version("ray")
        raise AttributeError(f"ray.{name}: this server runs without Ray; no code in it imports ray")

    @classmethod
    def make(cls) -> "NoRay":
        module = cls("ray")
        module.__path__ = []
        return module

    @staticmethod
    def is_initialized() -> bool:
        return True


def import_metrics() -> None:
    """Import NeMo Gym's metrics, and pandas and wandb for them only once they are used.

    Every server imports them when it starts: half of its time.
    """
    metrics = "nemo_gym.reward_profile"
    finder = PostponedFinder()
    with suppress(Exception):  # then the server imports them as it does without this
        importlib.import_module("nemo_gym.server_utils")
        sys.meta_path.insert(0, finder)
        importlib.import_module(metrics)
    sys.meta_path[:] = [each for each in sys.meta_path if each is not finder]
    for name in [name for name, module in sys.modules.items() if isinstance(module, Postponed)]:
        del sys.modules[name]


class PostponedFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for modules that take long to import."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.partition(".")[0] not in ("pandas", "wandb"):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return Postponed(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Postponed(types.ModuleType):
    """A module each of whose values imports it when it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return PostponedValue(self.__name__, name)


class PostponedValue:
    """A function or a class of a module that is not imported yet."""

    def __init__(self, module: str, name: str) -> None:
        self._place = module, name

    def _find(self) -> Any:
        module, name = self._place
        return getattr(importlib.import_module(module), name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._find()(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find(), name)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, self._find())

    def __or__(self, other: Any) -> Any:
        return Any  # in an annotation

    __ror__ = __or__


def start_ray() -> None:
    """Start Ray for this server alone, bound to this machine."""
    import ray  # pyright: ignore[reportMissingImports] - only its interpreter has it

    ray.init(
        _node_ip_address=LOOPBACK, include_dashboard=False, log_to_driver=True, namespace="gym"
    )


def serve_on(sock: socket.socket, plan: dict[str, Any]) -> None:
    """Let `uvicorn.run`, with which the server's base class serves its app, use this socket."""
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    names = ("peer_user", "game_routes", "row_schema", "episode_route", "episodes")
    peer_user, game_routes, row_schema, episode_route, episodes = (
        load_file(plan[name]) for name in names
    )

    class OwnUser(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """Closes connections of other users of this machine."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            user = peer_user.find_user(transport.get_extra_info("socket"))
            if user not in (None, os.geteuid()):
                transport.abort()

    about = {"status": "ok", "run_id": plan["run_id"], "server": plan["about"]}

    def run(app: Any, **options: Any) -> None:
        replies = {"/health": about, **find_replies(app)}
        app = game_routes.GameRoutes(app) if game_routes.is_game(app) else app
        if plan["takes_episodes"]:
            name = plan["about"]["name"]
            app = episode_route.EpisodeRoute(app, name, lambda found: convert(episodes, found))
        if plan["about"].get("checks_rows"):
            app = row_schema.RowRoute(app, row_schema.Schema(plan["folder"]))
        known = {name: value for name, value in options.items() if name not in ("host", "port")}
        config = uvicorn.Config(
            with_replies(app, replies), **{**known, "workers": 1, "http": OwnUser}
        )
        uvicorn.Server(config).run(sockets=[sock])

    uvicorn.run = run  # type: ignore[assignment]


def convert(episodes: Any, result: dict[str, Any]) -> dict[str, Any]:
    """The result of an episode as a rollout."""
    return episodes.as_rollout(result) if episodes.is_episode(result) else result


def with_replies(app: Any, replies: dict[str, Any]) -> Any:
    """The app, and fixed replies in front of it."""
    bodies = {path: json.dumps(reply).encode() for path, reply in replies.items()}

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        body = bodies.get(scope["path"]) if scope["type"] == "http" else None
        if body is None:
            await app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer


def find_replies(app: Any) -> dict[str, Any]:
    """Replies to steps of a rollout that need none of the server's code."""
    posts = {
        route.path: getattr(route, "endpoint", None)
        for route in getattr(app, "routes", ())
        if "POST" in (getattr(route, "methods", None) or ())
    }
    replies: dict[str, Any] = {}
    if "/seed_session" in posts and "/close_session" not in posts:
        replies["/close_session"] = {}
    seed = getattr(posts.get("/seed_session"), "__module__", None) or ""
    if seed.startswith("nemo_gym.") and posts.keys() <= WITHOUT_STATE:  # its base's, which is empty
        replies["/seed_session"] = {}
    return replies


def load_file(path: str) -> Any:
    """A module of this toolkit that imports nothing of it."""
    spec = importlib.util.spec_from_file_location(f"rollout_kit_{os.path.basename(path)}", path)
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
