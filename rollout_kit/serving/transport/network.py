"""The way to an endpoint: through a company's proxy or directly, whom to trust, as whom to appear.

The proxy is a setting of the model server, or comes from HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and
NO_PROXY, as curl and requests read them. Nothing on this machine's loopback goes through a proxy,
and servers of a run always ask each other directly.
"""

import asyncio
import base64
import os
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from ...errors import ConfigError, how_to_install
from .access import is_loopback

DIRECT = "none"
"""The setting of a server whose endpoint is asked directly."""

PROXY_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks5": 1080, "socks5h": 1080}
"""Kinds of proxies, and their usual ports."""

CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Files of certificate authorities, as other clients name them. OpenSSL reads SSL_CERT_FILE."""

NO_PROXY_URL = "is not a proxy's URL, such as http://user:password@proxy.corp:3128"

WITH_PORT = re.compile(r"(\[.+\]|[^:]+):(\d+)")

MAX_HEAD = 1 << 16
"""Largest head of a proxy's reply in bytes."""

AUTHENTICATION_REQUIRED = 407

NOT_ALLOWED = 2
"""What a SOCKS proxy answers where its rules forbid a connection."""

Protocol = TypeVar("Protocol", bound=asyncio.Protocol)


class Origin(NamedTuple):
    """The other end of a connection."""

    host: str
    port: int
    is_encrypted: bool

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def basic_credentials(user: str, password: str) -> str:
    """The value of a header that says who asks."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


class ProxyRefused(OSError):
    """A proxy did not connect us. A try later may succeed if `may_pass`."""

    def __init__(self, reason: str, *, may_pass: bool = False) -> None:
        super().__init__(0, reason)
        self.may_pass = may_pass


@dataclass(frozen=True)
class Proxy:
    """A proxy: its kind, its address, and who we are there."""

    kind: str
    host: str
    port: int
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> "Proxy":
        """ValueError if it is not the URL of a proxy."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ValueError(NO_PROXY_URL) from None  # the message would quote the password
        if not host:
            raise ValueError(NO_PROXY_URL)
        if parts.scheme not in PROXY_PORTS:
            kinds = ", ".join(f"{kind}://" for kind in PROXY_PORTS)
            raise ValueError(f"begins with {parts.scheme}://; proxies are {kinds}")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(parts.scheme, host, port or PROXY_PORTS[parts.scheme], user, password)

    def __str__(self) -> str:
        """The URL, without who we are there."""
        return f"{self.kind}://{Origin(self.host, self.port, False).address}"

    @property
    def is_socks(self) -> bool:
        return self.kind.startswith("socks")

    @property
    def authorization(self) -> str:
        """The header that says who we are, with its line break; "" if nobody asked."""
        if not self.user:
            return ""
        return f"proxy-authorization: {basic_credentials(self.user, self.password)}\r\n"

    def refusal(self, status: int, said: str, origin: Origin) -> ProxyRefused:
        """The error of a reply that is not ours but the proxy's own."""
        if status != AUTHENTICATION_REQUIRED:
            reason = f"it answered {status} {said}".rstrip() + f" when asked for {origin.address}"
            return ProxyRefused(reason, may_pass=status >= 500)
        if self.user:
            return ProxyRefused("it refuses the user or password in its URL (407)")
        return ProxyRefused(
            "it wants a user and password (407); write them into its URL: http://user:password@…"
        )


def find_exempt(entries: str) -> Callable[[Origin], bool]:
    """Whether an origin is exempt from proxies: this machine, and what a list as in NO_PROXY names.
    These are hosts with all below them, addresses and networks such as 10.0.0.0/8, each with a port
    or without; `*` is all."""
    hosts: list[tuple[str, int | None]] = []
    networks: list[IPv4Network | IPv6Network] = []
    for entry in filter(None, map(str.strip, entries.lower().split(","))):
        with suppress(ValueError):
            networks.append(ip_network(entry.strip("[]"), strict=False))
            continue
        found = WITH_PORT.fullmatch(entry)
        name, port = (found[1], int(found[2])) if found else (entry, None)
        hosts.append((name.strip("[]") if name == "*" else name.strip("[]").lstrip("*."), port))

    def is_exempt(origin: Origin) -> bool:
        host = origin.host.lower().rstrip(".")
        if is_loopback(host):
            return True
        for name, port in hosts:
            is_host = name == "*" or (bool(name) and (host == name or host.endswith(f".{name}")))
            if is_host and port in (None, origin.port):
                return True
        with suppress(ValueError):
            address = ip_address(host)
            return any(address in network for network in networks)
        return False

    return is_exempt


@dataclass(frozen=True)
class Network:
    """How endpoints are reached. The default is the direct way, with the system's authorities."""

    proxies: Mapping[str, Proxy] = field(default_factory=dict)
    """By the scheme of the URL that is asked; `all` for the others."""
    is_exempt: Callable[[Origin], bool] = lambda origin: False
    """Whether an origin is reached directly all the same."""
    ca_file: str = ""
    client_certificate: str = ""
    client_key: str = ""
    client_key_password: str = field(default="", repr=False)

    def proxy_for(self, origin: Origin) -> Proxy | None:
        """The proxy through which requests to this origin go."""
        proxy = self.proxies.get("https" if origin.is_encrypted else "http")
        proxy = proxy or self.proxies.get("all")
        return None if proxy is None or self.is_exempt(origin) else proxy

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """Whom to trust, and as whom to appear; ConfigError if a file cannot be used."""
        is_folder = os.path.isdir(self.ca_file)
        try:
            context = ssl.create_default_context(
                cafile=None if is_folder else self.ca_file or None,
                capath=self.ca_file if is_folder else None,
            )
        except OSError as error:
            reason = "it has no certificate in PEM" if isinstance(error, ssl.SSLError) else error
            raise ConfigError(f"ca_file {self.ca_file}: {reason}") from None
        context.set_alpn_protocols(["http/1.1"])
        if not self.client_certificate:
            return context
        try:
            context.load_cert_chain(
                self.client_certificate,
                self.client_key or None,
                self.client_key_password or _refuse_to_ask,
            )
        except (OSError, ValueError) as error:
            reason = str(error)
            if isinstance(error, ssl.SSLError):
                reason = "not in PEM, or the key is another one's, or its password is wrong"
            raise ConfigError(f"client_certificate {self.client_certificate}: {reason}") from None
        return context


def read_network(
    proxy: str | None = None,
    ca_file: str | None = None,
    client_certificate: str | None = None,
    client_key: str | None = None,
    client_key_password: str | None = None,
) -> Network:
    """The way that these settings describe, or the environment where they are None. ConfigError
    says which of them cannot be used."""
    variables = read_variables()
    given = {
        scheme: (f"{scheme.upper()}_PROXY", url)
        for scheme in ("http", "https", "all")
        if (url := variables.get(scheme))
    }
    if proxy is not None:
        given = {} if proxy == DIRECT else {"all": ("proxy", proxy)}
    found: dict[str, Proxy] = {}
    for scheme, (name, url) in given.items():
        try:
            found[scheme] = Proxy.parse(url)
        except ValueError as error:
            raise ConfigError(f"{name} {error}") from None
    if any(one.is_socks for one in found.values()) and find_spec("python_socks") is None:
        raise ConfigError(f"a SOCKS proxy needs an extra: {how_to_install('rollout-kit[socks]')}")
    if client_key and not client_certificate:
        raise ConfigError("client_key: set client_certificate as well")
    if not os.environ.get("SSL_CERT_FILE"):
        named = filter(None, map(os.environ.get, CA_VARIABLES))
        ca_file = ca_file or next(named, None)
    files = ca_file or "", client_certificate or "", client_key or "", client_key_password or ""
    network = Network(
        found,
        find_exempt(variables.get("no", "")) if proxy is None else lambda origin: False,
        *files,
    )
    if any(files):
        _ = network.tls  # say now what cannot be read
    return network


def read_variables() -> dict[str, str]:
    """The environment's proxies by scheme, and its list of exempt hosts as `no`."""
    from urllib.request import getproxies_environment  # takes milliseconds of each start

    return getproxies_environment()


def proxy_urls() -> list[str]:
    """The URLs of the environment's proxies, which may have passwords."""
    return [url for scheme, url in read_variables().items() if scheme != "no"]


def _refuse_to_ask() -> str:
    """In place of OpenSSL's question at the terminal."""
    raise ValueError("its key is encrypted: set client_key_password")


async def connect_through(
    proxy: Proxy, address: str, origin: Origin, network: Network, make: Callable[[], Protocol]
) -> Protocol:
    """A connection to `origin` through a proxy that listens at `address`. Requests that are not
    encrypted go to the proxy itself, which passes them on. OSError if it cannot be made."""
    loop = asyncio.get_running_loop()
    tls = network.tls if origin.is_encrypted else None
    if proxy.is_socks:
        sock = await _connect_socks(proxy, origin)
        name = origin.host if tls else None
        _, protocol = await loop.create_connection(make, sock=sock, ssl=tls, server_hostname=name)
        return protocol
    outer = {"ssl": network.tls, "server_hostname": proxy.host} if proxy.kind == "https" else {}
    if tls is None:
        _, protocol = await loop.create_connection(make, address, proxy.port, **outer)
        return protocol
    transport, reply = await loop.create_connection(_Answer, address, proxy.port, **outer)
    try:
        ask = f"CONNECT {origin.address} HTTP/1.1\r\nhost: {origin.address}\r\n"
        transport.write(f"{ask}{proxy.authorization}\r\n".encode())
        status, said = await reply.answered
        if status // 100 != 2:
            raise proxy.refusal(status, said, origin)
        protocol = make()
        inner = await loop.start_tls(transport, protocol, tls, server_hostname=origin.host)
    except BaseException:
        transport.abort()
        raise
    assert inner is not None
    protocol.connection_made(inner)
    return protocol


class _Answer(asyncio.Protocol):
    """What a proxy answers to CONNECT: status, and its words for it."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[tuple[int, str]]
        self.answered = asyncio.get_running_loop().create_future()
        self._raw = b""

    def data_received(self, data: bytes) -> None:
        self._raw += data
        head, end, _ = self._raw.partition(b"\r\n\r\n")
        if not self.answered.done() and (end or len(self._raw) > MAX_HEAD):
            version, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
            status, _, said = rest.partition(" ")
            if not (version.startswith("HTTP/") and status.isdigit()):
                self._fail("it did not answer in HTTP: is it a proxy?")
            else:
                self.answered.set_result((int(status), said))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self._fail("it closed the connection before it answered", may_pass=True)

    def _fail(self, reason: str, *, may_pass: bool = False) -> None:
        self.answered.set_exception(ProxyRefused(reason, may_pass=may_pass))
        self.answered.exception()  # the one who waits may have been cancelled


async def _connect_socks(proxy: Proxy, origin: Origin) -> socket.socket:
    from python_socks import ProxyConnectionError, ProxyError, ProxyTimeoutError, ProxyType
    from python_socks.async_.asyncio import Proxy as SocksProxy

    version = ProxyType.SOCKS4 if proxy.kind == "socks4" else ProxyType.SOCKS5
    who = proxy.user or None, proxy.password or None
    client = SocksProxy(version, proxy.host, proxy.port, *who, rdns=proxy.kind != "socks4")
    try:
        return await client.connect(origin.host, origin.port)
    except (ProxyConnectionError, ProxyTimeoutError) as error:
        raise ProxyRefused(f"{error}", may_pass=True) from None
    except ProxyError as error:
        # without a code, it is about who we are, or it is no SOCKS proxy
        may_pass = error.error_code not in (None, NOT_ALLOWED)
        raise ProxyRefused(f"it refused: {error}", may_pass=may_pass) from None
