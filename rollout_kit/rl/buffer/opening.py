"""From the URL of a buffer to the buffer."""

from collections import Counter
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ...errors import ConfigError
from .buffer import Buffer
from .owners import LeaseOwner
from .policy import BufferPolicy

SCHEMES = ", ".join(
    (
        *("memory", "memory:?spool=FILE", "memory:?spool=s3://BUCKET/PATH"),
        *("redis://HOST:PORT/DB/NAME", "ray://ADDRESS/NAME", "http://HOST:PORT"),
    )
)

DEFAULT_NAME = "buffer"


async def open_buffer(url: str, *, token: str = "", owner: str = "", **policy: Any) -> Buffer:
    """The buffer at a URL, as `+buffer=` takes it; ConfigError if it cannot be opened.

    The policy is given in the query of the URL, or as arguments:
    `redis://localhost:6379/0/run1?batch=32&staleness=1`. A buffer that exists keeps its policy, and
    another one than that is refused. `token` is for HTTP beyond this machine. `owner` is a name
    of this consumer that its next life has too, on whatever machine, and no other consumer.
    """
    buffer = await _open(url, token, policy)
    buffer.owner = LeaseOwner.of_this_process(owner)
    return buffer


async def _open(url: str, token: str, policy: dict[str, Any]) -> Buffer:
    scheme, asked = read_url(url, policy)
    parts = urlsplit(url)
    spelled = f"{scheme}:" + url.partition(":")[2].partition("?")[0].rpartition("@")[2]
    if scheme == "memory":
        from .memory import MemoryBuffer

        spool = asked.pop("spool", None)
        return MemoryBuffer(BufferPolicy.parse(asked, "memory"), spool=spool or None)
    if scheme in ("http", "https"):
        from .http import HttpBuffer

        buffer = HttpBuffer(url.partition("?")[0], token)
        try:
            await buffer.connect(asked, spelled)
        except BaseException:
            await buffer.close()
            raise
        return buffer
    path = parts.path.strip("/")
    if scheme == "ray":
        from .ray_actor import RayBuffer

        return await RayBuffer.open(parts.netloc, path or DEFAULT_NAME, asked, spelled=spelled)
    from .redis_streams import RedisBuffer

    if scheme == "unix":
        return await RedisBuffer.open(
            url.partition("?")[0], DEFAULT_NAME, asked, spelled=f"unix:{parts.path}"
        )
    database, _, name = path.partition("/")
    if database and not database.isdecimal():
        database, name = "0", path
    where = parts._replace(path=f"/{database or 0}", query="").geturl()
    return await RedisBuffer.open(where, name or DEFAULT_NAME, asked, spelled=spelled)


def read_url(url: str, policy: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    """The scheme of a buffer's URL, and what it asks for; ConfigError for another URL."""
    scheme = url.partition("?")[0].partition(":")[0]
    if scheme == "s3":
        raise ConfigError(
            f"buffer={url}: in a bucket nothing waits or is leased. Serve a buffer that keeps its"
            f" groups there: memory:?spool={url.partition('?')[0]}"
        )
    if scheme not in ("memory", "redis", "rediss", "unix", "ray", "http", "https"):
        raise ConfigError(f"buffer={url}: there are {SCHEMES}")
    if scheme == "memory" and url.partition("?")[0].strip(":/") != "memory":
        raise ConfigError(f"buffer={url}: settings follow a ?, as in memory:?batch=32&staleness=0")
    pairs = parse_qsl(url.partition("?")[2], keep_blank_values=True)
    if twice := [key for key, number in Counter(key for key, _ in pairs).items() if number > 1]:
        raise ConfigError(f"buffer={scheme}: {twice[0]} is given more than once")
    asked: dict[str, Any] = dict(pairs) | (policy or {})
    known = {**asked}
    known.pop("spool", None) if scheme == "memory" else None
    BufferPolicy.parse(known, f"buffer={scheme}")
    if scheme in ("memory", "ray") and known.get("reference_bytes") is not None:
        raise ConfigError(f"buffer={scheme}: reference_bytes: only Redis keeps references")
    return scheme, asked
