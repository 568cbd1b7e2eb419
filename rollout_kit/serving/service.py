"""A server as a class of typed methods, called by path.

Both transports, local and HTTP, call `answer(path, raw)` with the JSON bytes of the body. So a
server behaves the same over either, and cannot change the objects of its caller.
"""

import asyncio
import contextvars
import inspect
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, PrivateAttr

from ..errors import ConfigError, RolloutError, boundary, how_to_install
from ..responses import provider_data_in
from ..secrets import echoes, mask, mask_echo, secret_values
from ..session import current_session
from ..trajectory import without_tokens
from ..types import JsonObject
from .transport.access import Accepted
from .transport.encoding import NotJson
from .transport.peers import Peers
from .transport.wire import Route, encode, parse_leniently, parse_object, request_parser

Handler = TypeVar("Handler", bound=Callable[..., Any])


class ServerConfig(BaseModel):
    """Base of the configuration of every implementation.

    Declare a field that cannot affect what the policy generates (an endpoint, a timeout) with
    `Field(json_schema_extra=OPERATIONAL)`: the fingerprint of the settings leaves it out.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    _private: frozenset[str] = PrivateAttr(frozenset())

    @classmethod
    def of(cls, settings: JsonObject, private: Iterable[str]) -> Self:
        """The validated configuration. `private` are secret texts in it, whatever their keys."""
        config = cls.model_validate(settings)
        config._private = frozenset(private)
        return config

    @property
    def private(self) -> frozenset[str]:
        return self._private

    def get(self, key: str, default: Any = None) -> Any:
        """A field by name, as `dict.get`."""
        return getattr(self, key, default)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Fields for `repr`, with secrets masked."""
        given = super().__repr_args__()
        return [(name, mask({name: value}, self._private)[name]) for name, value in given]


PART, OVERLAP = 1 << 22, 1 << 16
"""Bytes of a large reply in which secrets are looked for at a time, and those in two parts."""

OPERATIONAL: JsonObject = {"operational": True}
"""`json_schema_extra` of a field that may change between two runs into the same output."""


class ServerRef(BaseModel):
    """A reference to another instance; in YAML: `{type: …, name: …}`."""

    model_config = ConfigDict(extra="forbid")
    type: str = ""
    name: str


def _check_names(cls: type) -> None:
    """Raise TypeError if a user's server redefines a private name of one of our base classes."""
    own, ours = __name__.split(".")[0], set()
    if cls.__module__.split(".")[0] == own:
        return
    for base in cls.__mro__[1:]:
        if base.__module__.split(".")[0] == own:
            ours |= {name for name in vars(base) if name[0] == "_" and name[:2] != "__"}
    if taken := sorted(ours & set(vars(cls))):
        raise TypeError(
            f"{cls.__name__}: {', '.join(taken)}: the base class uses this name: choose another"
        )


def post(path: str) -> Callable[[Handler], Handler]:
    """Serve the method at `POST path`; its one parameter's annotation is the request's type."""
    return _mark("POST", path)


def get(path: str) -> Callable[[Handler], Handler]:
    """Serve the method, which has no parameters, at `GET path`."""
    return _mark("GET", path)


def _mark(method: str, path: str) -> Callable[[Handler], Handler]:
    def mark(function: Handler) -> Handler:
        function.__route__ = (method, path)  # type: ignore[attr-defined]
        return function

    return mark


@dataclass(frozen=True, slots=True)
class Demands:
    """What a server needs from placement: a process of its own, or more time to become ready. So
    vLLM's output, end and restart are handled like those of any other server."""

    own_process: bool = False
    ready_timeout_s: float = 0.0
    per_worker: bool = False
    """Whether each worker of a collection may have such a model for itself. Others run once: they
    hold weights, or keep to a rate limit."""


class Service:
    """Base of every server. `name` is the instance's; `peers` reaches the others."""

    kind: ClassVar[str] = ""
    Config: ClassVar[type[ServerConfig]] = ServerConfig
    routes: ClassVar[dict[str, Route]] = {}
    needs: ClassVar[Mapping[str, str]] = {}
    """Package that the server imports only when it starts → the `pip install` argument for it."""

    takes_pieces = False
    """Whether a request of this process may be `SplitRequest`, in place of bytes."""

    is_restarted = False
    """Whether an earlier process of this run was this server, and may have described itself. Then
    each verdict names the verifier, so that edited code never judges under the old name."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _check_names(cls)
        cls.routes = {route.path: route for route in _find_routes(cls)}

    def __init__(self, config: Any = None, peers: Peers | None = None, name: str = "") -> None:
        """A server that a program makes needs no more than a `Config`, if that: whatever runs it
        gives it its peers and, if it has none, its name."""
        self.config: Any = type(self).Config() if config is None else config
        self.peers = Peers({}) if peers is None else peers
        self.name = name

    @classmethod
    def demands(cls, settings: JsonObject) -> Demands:
        """The demands of a server with these settings; called before the server exists."""
        return Demands()

    def check_needs(self) -> None:
        """Raise ConfigError if a package of `needs` is missing; it says how to install it."""
        for package, install in self.needs.items():
            if find_spec(package) is None:
                kind = Path(inspect.getfile(type(self))).parent.name
                raise ConfigError(
                    f"{self.name}: {kind} needs {package}: run {how_to_install(install)}"
                )

    async def start(self) -> None:
        """Prepare the server; it is ready when this returns. Raise if it cannot start."""

    async def stop(self) -> None:
        """Release what `start` acquired."""

    def http_routes(self) -> Iterable[Route]:
        """The routes that HTTP clients may call."""
        return self.routes.values()

    def build_app(self, run_id: str = "") -> Any:
        """The ASGI app of this server. Override it to add routes: for an override it is FastAPI's,
        which takes a quarter of a second to import."""
        from .transport.app import build_app  # local servers need no HTTP server

        routes = self.http_routes()
        if type(self).build_app.__module__.split(".")[0] == __name__.split(".")[0]:
            return build_app(self, routes, run_id)
        from fastapi import FastAPI

        return build_app(self, routes, run_id, FastAPI)

    def serving(
        self, sock: socket.socket, run_id: str = "", token: Accepted = ""
    ) -> AbstractAsyncContextManager[None]:
        """Context in which this server listens on `sock`. An override with an HTTP server of its
        own must check each request with `Access`. It may need one to simulate faults of a network,
        which takes a raw socket, or to cost less than the client that it tests."""
        from .transport.app import served

        return served(self.build_app(run_id), sock, token)

    async def answer(self, path: str, raw: bytes) -> Any:
        """Call `handle` and mask this server's secrets in errors and replies: endpoints may quote
        a key that they refuse, or echo a request."""
        try:
            reply = await self.handle(path, raw)
            is_checked = self.secrets() or isinstance(reply, str) or path == "/seed_session"
            return self._mask_reply(reply) if is_checked else reply
        except (RolloutError, NotJson) as found:
            error = found.refuse(self.name, path) if isinstance(found, NotJson) else found
            said = [error.message, error.body, error.traceback]
            error.message, error.body, error.traceback = mask(said, self.secrets())
            raise error from error.__cause__

    async def answer_client(self, path: str, raw: bytes) -> Any:
        """The same over HTTP for a client of others: one without a session."""
        return await self.answer(path, raw)

    def secrets(self) -> frozenset[str]:
        """Texts that must not leave this server."""
        return self._secrets

    @cached_property
    def _secrets(self) -> frozenset[str]:
        return secret_values(self.config.model_dump()) | self.config.private

    @cached_property
    def _boundary(self) -> boundary:
        return boundary(self.name)

    def _mask_reply(self, reply: Any) -> Any:
        """The reply with secrets masked. The rollout then says so, and carries no token ids."""
        raw = encode(reply)
        if not any(echoes(text, self.secrets()) for text in _read_in_parts(raw)):
            return reply
        if isinstance(reply, str | bytes):
            masked = mask_echo(raw.decode("utf-8", "replace"), self.secrets())
            return type(reply)(masked.encode()) if isinstance(reply, bytes) else masked
        tree = parse_leniently(orjson.loads, raw)
        if (masked := mask_echo(tree, self.secrets())) == tree:
            return reply
        if provider_data_in(masked) != provider_data_in(tree):
            # masked, the endpoint would refuse it; as it is, it would be stored
            raise RolloutError(
                "what the endpoint attached to its answer, for the next request, contains a secret"
                " of this server's configuration",
                server=self.name,
                retryable=False,
            )
        if session := current_session():
            session.stats["masked"] = True
        return without_tokens(masked)

    async def handle(self, path: str, raw: bytes) -> Any:
        """Answer one request. Every error is a RolloutError that names this server."""
        route = self.routes.get(path)
        if route is None:
            raise RolloutError(f"has no route {path}", server=self.name, status=404)
        with self._boundary:
            handler = getattr(self, route.handler)
            if route.takes_body:
                return await invoke(handler, self._parse(route, raw))
            return await invoke(handler)

    def _parse(self, route: Route, raw: bytes) -> Any:
        return route.parse(raw)

    def reply_headers(self, reply: Any) -> Mapping[str, str]:
        """Headers of a reply over HTTP, besides those of its session."""
        return {}

    def generation_settings(self) -> JsonObject:
        """The settings that affect what is generated; a resumed run must have the same. Secrets are
        masked, so a new key is no difference."""
        fields = type(self.config).model_fields
        given = self.config.model_dump(mode="json", exclude_defaults=True)
        settings = {
            name: value for name, value in given.items() if not _is_operational(fields.get(name))
        }
        return mask(settings, self.secrets())

    def load_figures(self) -> JsonObject:
        """How busy the server is; `ng_status` shows it."""
        return {}

    def describe(self) -> JsonObject:
        """What a collector needs to know about this server."""
        return {"name": self.name, "type": self.kind, "settings": self.generation_settings()}


def _read_in_parts(raw: bytes) -> Iterator[str]:
    """The text, in parts that overlap by more than a secret's length: a copy of a large one would
    take as much memory again."""
    for start in range(0, max(1, len(raw) - OVERLAP), PART - OVERLAP):
        yield raw[start : start + PART].decode("utf-8", "replace")


def invoke(handler: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
    """Call a method; await its result. A method that is not async runs in a thread of its own.

    So it cannot block the event loop. The thread is a daemon: a verifier that hangs neither takes
    the place of another nor keeps the process from ending.
    """
    if _is_async(getattr(handler, "__func__", handler)):
        return handler(*arguments)
    return _invoke_in_thread(handler, *arguments)


async def _invoke_in_thread(handler: Callable[..., Any], *arguments: Any) -> Any:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result, error = context.run(handler, *arguments), None
        except StopIteration as raised:  # a future cannot hold it; a coroutine raises the same
            result, error = None, RuntimeError(f"StopIteration: {raised}")
        except BaseException as raised:
            result, error = None, raised
        with suppress(RuntimeError):  # the loop may have ended meanwhile
            loop.call_soon_threadsafe(_settle, answer, result, error)

    threading.Thread(target=work, daemon=True).start()
    return await answer


def _settle(answer: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if answer.done():
        return  # cancelled meanwhile
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


@lru_cache(maxsize=4096)
def _is_async(function: Callable[..., Any]) -> bool:
    """`iscoroutinefunction`, cached because it is called for every request."""
    return inspect.iscoroutinefunction(function)


def _is_operational(field: Any) -> bool:
    extra = getattr(field, "json_schema_extra", None)
    return isinstance(extra, dict) and bool(extra.get("operational"))


def _find_routes(cls: type) -> list[Route]:
    routes = []
    for name in dir(cls):
        marked = next(
            (
                function.__dict__["__route__"]
                for base in cls.__mro__
                if (function := base.__dict__.get(name)) is not None
                and "__route__" in getattr(function, "__dict__", {})
            ),
            None,
        )
        if marked:
            method, path = marked
            routes.append(route_to(cls, name, method, path))
    return routes


def route_to(cls: type, name: str, method: str, path: str) -> Route:
    """The route to a method; the annotation of its one parameter is the request type."""
    function = getattr(cls, name)
    parameters = list(inspect.signature(function).parameters)[1:]
    if method == "GET" or not parameters:
        return Route(path, method, name, parse_object, takes_body=False)
    annotation = get_type_hints(function).get(parameters[0], JsonObject)
    return Route(path, method, name, request_parser(annotation))
