"""Base of resources servers: tools, state of each session, and verifier of one environment.

A session lasts from `/seed_session` to `/close_session` and belongs to one attempt.
`/seed_session` checks the row against the request type of the verifier, before any model call.
"""

import inspect
import logging
import socket
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from types import CoroutineType
from typing import Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, Field, ValidationError

from ..errors import (
    RolloutError,
    SessionLost,
    TaskError,
    ToolError,
    VerifyError,
    boundary,
    suggest,
    validation_summary,
)
from ..session import VERIFIER, Session, current_session, entered
from ..types import JsonObject, SeedSessionResponse, VerifyRequest, VerifyResponse
from .fingerprint import load_code
from .group_verdicts import GroupScores, as_group_scores, parse_group
from .open_sessions import OpenSessions
from .rollout_verdicts import as_verdict, find_request_type, parse_request, splice_metadata
from .service import OPERATIONAL, ServerConfig, Service, get, invoke, post
from .tools import USER_SIDE, ForwardedTool, Tool, find_tools, tool
from .transport.access import Accepted
from .transport.peers import RowCheck
from .transport.wire import Route, parse_leniently

__all__ = ["ResourcesServer", "ResourcesServerConfig", "tool"]

log = logging.getLogger(__name__)

SESSION_TIMEOUT_S = 7200.0
"""Twice the default time limit of a rollout, so that only sessions of dead callers expire."""

Reverify = Literal["stateless", "replay", "never"]
"""How a stored response can be verified again: by itself, after its tool calls are replayed, or not
at all."""


class ResourcesServerConfig(ServerConfig):
    """Keys of every resources server. A class without a Config of its own accepts any key.

    Example:

        class SumsConfig(rk.ResourcesServerConfig):
            worth: float = 1.0
    """

    model_config = ConfigDict(extra="allow")

    session_timeout_s: float = Field(
        default=SESSION_TIMEOUT_S,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="A session is closed after this many seconds without a call.",
    )
    mcp: bool = Field(
        default=False,
        json_schema_extra=OPERATIONAL,
        description="Serve the tools over MCP too, at /mcp, if the server has a URL.",
    )
    openenv: bool = Field(
        default=False,
        json_schema_extra=OPERATIONAL,
        description="Offer the server to clients of OpenEnv too, at /openenv, if it has a URL.",
    )
    openenv_tasks: str | None = Field(
        default=None,
        json_schema_extra=OPERATIONAL,
        description="File of rows from which /openenv chooses its tasks.",
    )
    fast_mode: bool = Field(
        default=False, description="Verify by a cheaper check if the server has one."
    )


class ResourcesServer(Service):
    """Tools, state and verifier of one environment.

    Subclasses write `verify`. The long form is `async def verify(self, body: VerifyRequest) ->
    VerifyResponse`, with a request type of their own. The short form is `def verify(self, task,
    response)`; it returns a reward or a mapping with `reward`. A method without `async` runs in a
    thread. Tools are `@tool` methods.

    `def verify_group(self, task, members)`, if there is one, scores all rollouts of a task
    together: see `GroupMember` and `GroupScores`. A server may have it in place of `verify`.

    Example:

        class Sums(rk.ResourcesServer):
            def verify(self, task, response):
                return float(rk.output_text(response) == task["expected_answer"])


        table = await rk.collect(rows, model=lambda params: "4", environment=Sums)
        print([rollout.reward for rollout in table])
    """

    kind: ClassVar[str] = "resources_servers"
    Config: ClassVar[type[ServerConfig]] = ResourcesServerConfig
    reverify: ClassVar[Reverify | None] = None
    """How a stored response can be verified again: alone (`stateless`), after repeating its tool
    calls in a new session (`replay`), or `never`. None means `never` if the server keeps state,
    else `stateless`."""

    measured: ClassVar[frozenset[str]] = frozenset()
    """Fields of a verdict that are measurements, such as times, and differ at each verification."""

    tools: Mapping[str, Tool | ForwardedTool] = {}
    """By name: the `@tool` methods of the class. A server that forwards calls to another program
    sets it in `start`."""
    user_tools: ClassVar[Mapping[str, Tool]] = {}
    """By name: the `@user_tool` methods of the class, which the policy is not offered."""
    _verify_request: ClassVar[type[VerifyRequest] | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.tools, cls.user_tools = find_tools(cls), find_tools(cls, USER_SIDE)
        cls._verify_request = find_request_type(cls.verify, cls.__name__)

    def __init__(self, config: Any = None, peers: Any = None, name: str = "") -> None:
        super().__init__(config, peers, name)
        timeout_s = self.config.get("session_timeout_s") or SESSION_TIMEOUT_S
        self._sessions = OpenSessions(timeout_s, self._expire)
        self._code = load_code(type(self))
        self._verify_boundary = boundary(name, VerifyError)

    @post("/seed_session")
    async def seed_session(self, body: JsonObject) -> SeedSessionResponse:
        """Prepare the session of one attempt at the row `body`. Set `self.state` here."""
        return SeedSessionResponse()

    @post("/close_session")
    async def close_session(self, body: JsonObject) -> JsonObject:
        """Release what the session holds outside of `self.state`."""
        return {}

    @post("/verify")
    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        """The reward of `body.response` for this task, with further fields."""
        raise NotImplementedError(f"{type(self).__name__} has no verify")

    @get("/tools")
    async def list_tools(self) -> list[JsonObject]:
        """The tools of this server, in the form of `responses_create_params.tools`."""
        return [tool.schema for tool in self.tools.values()]

    def find_tool(self, name: str) -> Tool | ForwardedTool | None:
        """The tool of this name, whoever may call it."""
        return self.tools.get(name) or self.user_tools.get(name)

    @property
    def state(self) -> Any:
        """What `seed_session` stored for this session; SessionLost if the session is not open."""
        session = current_session()
        state = self._sessions.state(session.id) if session else None
        if state is None:
            raise SessionLost("no state for this session: seed_session has not set it here")
        return state

    @state.setter
    def state(self, value: Any) -> None:
        session = current_session()
        if session is None or session.id not in self._sessions:
            raise SessionLost("state can only be set in a session that is open")
        self._sessions.set_state(session.id, value)

    @property
    def num_sessions(self) -> int:
        """Sessions that are open now."""
        return len(self._sessions)

    async def ensure_session(self, session: Session) -> None:
        """Open the session if it is not open; for callers that have no row."""
        if session.id in self._sessions:
            return
        self._sessions.begin(session.id)
        if self._seeds:
            try:
                with entered(session):
                    await self._answer("/seed_session", b"{}")
            except BaseException:
                self._sessions.end(session.id)
                raise

    def build_app(self, run_id: str = "") -> Any:
        app = super().build_app(run_id)
        if not self.config.get("openenv"):
            return app
        from .protocols.openenv_door import OpenEnvDoor  # games need not import it

        return OpenEnvDoor(app, self)

    def serving(
        self, sock: socket.socket, run_id: str = "", token: Accepted = ""
    ) -> AbstractAsyncContextManager[None]:
        if not self.config.get("mcp"):
            try:
                return super().serving(sock, run_id, token)
            except BaseException:  # what /openenv offers cannot be read
                sock.close()
                raise
        from .transport.mcp_server import serving  # importing the SDK takes a second

        return serving(self, sock, run_id, token)

    def http_routes(self) -> Iterable[Route]:
        """The server's own routes, and one for each tool."""
        names = [*self.tools, *self.user_tools]
        names += ["verify_group"] if self.verifies_groups else []
        return [*super().http_routes(), *(Route(f"/{name}", "POST", name, bytes) for name in names)]

    def handle(self, path: str, raw: bytes) -> "CoroutineType[Any, Any, Any]":
        session = current_session()
        if session is None or path == "/verify_group":  # a group belongs to no session
            return self._answer(path, raw)
        if path == "/verify" and not self._needs_session:
            return self._verdict(raw)
        return self._answer_in(session, path, raw)

    async def _answer_in(self, session: Session, path: str, raw: bytes) -> Any:
        """Answer a request of a session, which must be open if the server keeps state."""
        if path == "/seed_session":
            try:
                later = self._begin_row_check(orjson.loads(raw))
            except orjson.JSONDecodeError as error:
                message = f"the row is not JSON: {error}"
                raise TaskError(message, server=self.name) from None
            if later is not None:
                await later
            if self._needs_session:
                self._sessions.begin(session.id)
        elif path == "/close_session":
            return await self._close_session(session, raw)
        elif path != "/tools" and self._keeps_state and session.id not in self._sessions:
            raise SessionLost(
                "this session is not open here: the server was restarted, or the session expired",
                server=self.name,
            )
        begun = self._sessions.begin_call(session.id)
        try:
            return await self._answer(path, raw)
        except BaseException:
            if path == "/seed_session":
                self._sessions.end(session.id)
            raise
        finally:
            self._sessions.end_call(session.id, begun)

    async def _answer(self, path: str, raw: bytes) -> Any:
        if path == "/seed_session" and not self._seeds:
            return {}
        if path == "/verify":
            return await self._verdict(raw)
        if path == "/verify_group" and self.verifies_groups:
            return await self._group_scores(raw)
        if (begun := self.find_tool(path[1:])) is not None:
            with boundary(self.name, ToolError):
                method, arguments = begun.bind(self, begun.parse(raw))  # type: ignore[arg-type]
                return await invoke(method, *arguments)
        return await super().handle(path, raw)

    async def _close_session(self, session: Session, raw: bytes) -> Any:
        """Close the session, even if the server's own `close_session` fails."""
        try:
            is_open = session.id in self._sessions
            return await super().handle("/close_session", raw) if is_open and self._closes else {}
        finally:
            self._sessions.end(session.id)

    async def _expire(self, id: str) -> None:
        log.warning("%s: a session expired without being closed", self.name)
        with entered(Session(id)):
            try:
                await self._close_session(Session(id), b"{}")
            except RolloutError as error:
                log.error("%s: closing it failed: %s", self.name, error.message)

    async def _verdict(self, raw: bytes) -> VerifyResponse:
        wanted = self._verify_request
        with self._verify_boundary:
            request = parse_request(raw, wanted or VerifyRequest)
            if wanted is None:
                task = parse_leniently(orjson.loads, raw)
                found = await invoke(self.verify, task, task.pop("response"))
            else:
                found = await invoke(self.verify, request)
            if self.is_restarted and (session := current_session()):
                session.stats[VERIFIER] = self._identity["verifier"]
            return as_verdict(request, found)

    async def _group_scores(self, raw: bytes) -> GroupScores:
        with self._verify_boundary:
            request = parse_group(raw)
            found = await invoke(self.verify_group, request.task, request.members)  # type: ignore[attr-defined]
            if self.is_restarted and (session := current_session()):
                session.stats[VERIFIER] = self._identity["verifier"]
            return as_group_scores(found, request.members)

    def row_check(self) -> RowCheck | None:
        """The check of a row, if that is all a session would do for this server, else None."""
        return None if self._needs_session else self._begin_row_check

    def _begin_row_check(self, row: JsonObject) -> Awaitable[None] | None:
        self.check_row(row)
        return self.check_later(row)

    def check_later(self, row: JsonObject) -> Awaitable[None] | None:
        """What of the check of a row takes a worker process, such as compiling its patterns; it
        raises TaskError. None if nothing does."""
        return None

    def check_row(self, row: JsonObject) -> None:
        """Raise TaskError if the verifier cannot accept this row with any response."""
        wanted = self._verify_request or VerifyRequest
        with self._boundary:
            try:
                wanted.model_validate(splice_metadata({"response": {}, **row}, wanted))
            except ValidationError as error:
                if any(problem["loc"][:1] != ("response",) for problem in error.errors()):
                    raise TaskError(
                        f"the verifier cannot take this row: {validation_summary(error)}"
                    ) from None
            except ValueError as error:
                raise TaskError(f"the verifier cannot take this row: {error}") from None

    @property
    def verifies_groups(self) -> bool:
        """Whether the class has `verify_group`."""
        return callable(getattr(self, "verify_group", None))

    @cached_property
    def _needs_session(self) -> bool:
        cls = type(self)
        is_plain = cls.handle is ResourcesServer.handle and cls.answer is Service.answer
        return self._keeps_state or self._closes or not is_plain

    @property
    def _keeps_state(self) -> bool:
        return bool(self.tools) or bool(self.user_tools) or self._seeds

    @property
    def _seeds(self) -> bool:
        return type(self).seed_session is not ResourcesServer.seed_session

    @property
    def _closes(self) -> bool:
        return type(self).close_session is not ResourcesServer.close_session

    def load_figures(self) -> JsonObject:
        return {"sessions": self.num_sessions}

    def describe(self) -> JsonObject:
        return {
            **super().describe(),
            "reverify": self.reverify or ("never" if self._keeps_state else "stateless"),
            "needs_session": self._needs_session,
            **self._identity,
            "changed_files": self._code.list_changed(),
            "verifies": type(self).verify is not ResourcesServer.verify or not self.verifies_groups,
            "verifies_groups": self.verifies_groups,
            **({"lack": what} if (what := self.find_lack()) else {}),
        }

    @classmethod
    def find_lack(cls) -> str:
        """What a class without `verify` lacks; empty for an application of its own."""
        is_own = (
            cls.build_app is not ResourcesServer.build_app
            or cls.handle is not ResourcesServer.handle
        )
        if cls.verify is not ResourcesServer.verify or hasattr(cls, "verify_group") or is_own:
            return ""
        names = [name for name in dir(cls) if name not in dir(ResourcesServer)]
        where = f"{cls.__name__} in {inspect.getfile(cls)}"
        return f"{where} has no method 'verify'{suggest('verify', names)}"

    def library_versions(self) -> dict[str, str]:
        """Versions on which verdicts depend, besides those of the libraries that the code of this
        server imports."""
        return {}

    @cached_property
    def _identity(self) -> JsonObject:
        return self._code.identify(self.library_versions(), self.generation_settings())
