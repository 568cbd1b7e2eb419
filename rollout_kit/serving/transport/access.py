"""Access control: the checks before a server reads a request.

All routes but `/health` need the run's token. Over loopback the user who runs the server needs
none, and other users of the machine do; routes that control the run always need it.

A web page can post forms to any port of its viewer's machine, and can point its own host name to
127.0.0.1. So a request over loopback must declare its body as JSON, which a page cannot do without
permission, and its Host must name this machine. A page may open a WebSocket to any host, and says
where it comes from: such a one is refused.

A server process gets digests of the tokens that it accepts, and callers of a run's server send one
that opens this server only. So neither a server nor a request to it has the run's token.
"""

import hmac
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from .peer_user import PEER_USER, PeerUser

OPEN = frozenset({"/health"})
"""Paths of every server that need no token."""

TRUSTED = "rollout_kit.trusted"
"""Key of the ASGI scope: whether the caller may see details of the server in `/health`."""

Accepted = str | Sequence[str]
"""What a server accepts: a token, or digests of tokens."""

PROOFS = (b"authorization", b"x-api-key", b"api-key")
"""Headers in which clients send a token: OpenAI's, Anthropic's, and Azure's."""

POLICY_VIOLATION = 1008
"""Code with which a WebSocket is refused."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server. `hosts` are the names that Host may have; empty if every request
    needs the token."""

    hosts: frozenset[str]
    digests: frozenset[str]
    control: frozenset[str]
    open: frozenset[str] = OPEN
    """Paths that need no token."""

    @classmethod
    def to(
        cls,
        sock: socket.socket,
        token: Accepted = "",
        control: Iterable[str] = (),
        opened: Iterable[str] = (),
    ) -> "Access":
        """The rules for a server that listens on `sock`; `opened` paths check their callers
        themselves."""
        digests = token
        if isinstance(token, str):
            digests = [digest_of(token)] if token else []
        address = str(sock.getsockname()[0])
        own = f"[{address}]" if ":" in address else address
        hosts = {*LOOPBACK_NAMES, own} if is_loopback(address) else ()
        return cls(frozenset(hosts), frozenset(digests), frozenset(control), OPEN.union(opened))

    def refusal(self, scope: Scope) -> tuple[HTTPStatus, str] | None:
        """Why the request is refused; None if it is accepted. Sets TRUSTED in the scope, which
        must have the PEER_USER."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self.hosts and name not in self.hosts:
            known = ", ".join(sorted(self.hosts))
            return HTTPStatus.FORBIDDEN, f"the Host '{host}' is not one of this server's: {known}"
        if _is_websocket(scope):
            if b"origin" in headers:
                return HTTPStatus.FORBIDDEN, "WebSockets are not for web pages: leave out Origin"
        elif refused := _find_form(scope, headers):
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, refused
        path = scope["path"]
        is_open_to_user = bool(self.hosts) and path not in self.control
        has_token = any(name in headers and self._is_token(headers[name]) for name in PROOFS)
        scope[TRUSTED] = has_token or (is_open_to_user and _peer_user(scope).is_own)
        if scope[TRUSTED] or path in self.open:
            return None
        reason = f"{path} needs the token of this run, as  authorization: Bearer <token>"
        if is_open_to_user:
            reason += "; only the user who runs this server needs none on this machine"
        return HTTPStatus.UNAUTHORIZED, reason

    def _is_token(self, header: bytes) -> bool:
        given = sha256(header.removeprefix(b"Bearer ")).hexdigest()
        return any(hmac.compare_digest(given, each) for each in self.digests)


def _find_form(scope: Scope, headers: dict[bytes, bytes]) -> str:
    """What is wrong with a request that a form of a web page could send; empty for another one."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if scope["method"] in ("GET", "HEAD", "OPTIONS") or kind == b"application/json":
        return ""
    return "send the body as JSON, with the header  content-type: application/json"


def _is_websocket(scope: Scope) -> bool:
    """Servers with HTTP of their own give no type."""
    return scope.get("type") == "websocket"


def _peer_user(scope: Scope) -> PeerUser:
    """Of a request, or of the request from which a WebSocket was made."""
    return scope["state"][PEER_USER] if _is_websocket(scope) else scope[PEER_USER]


def guard(app: ASGIApp, access: Access) -> ASGIApp:
    """`app` behind the checks of `access`."""

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        is_checked = scope["type"] in ("http", "websocket")
        if not is_checked or (refusal := access.refusal(scope)) is None:
            await app(scope, receive, send)
            return
        status, message = refusal
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": message})
            return
        error = {"type": "PeerError", "message": message, "status": status, "retryable": False}
        await send_json(send, status, orjson.dumps({"error": error}))

    return check


async def send_json(send: Send, status: int, body: bytes) -> None:
    """Answer a request with JSON bytes."""
    length = (b"content-length", b"%d" % len(body))
    headers = [(b"content-type", b"application/json"), length]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def is_loopback(address: str) -> bool:
    """Whether `address` (IP address or host name) can only be reached from this machine."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.lower().rstrip(".") == "localhost"


def digest_of(token: str) -> str:
    """What recognizes a token, and cannot be sent in its place."""
    return sha256(token.encode()).hexdigest()


def token_for(server: str, token: str) -> str:
    """The token that opens one server of a run, computed from that of the run."""
    key = hmac.digest(token.encode(), b"token of one server", "sha256")
    return hmac.new(key, server.encode(), "sha256").hexdigest()


def accepted_by(server: str, token: str) -> list[str]:
    """Digests of the tokens that a server of a run accepts: its own, and that of the run."""
    return [digest_of(token_for(server, token)), digest_of(token)]


def bearer(token: str | None) -> dict[str, str]:
    """The header with the token; empty without a token."""
    return {"authorization": f"Bearer {token}"} if token else {}
