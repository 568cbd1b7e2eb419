"""A rollout as a member of its group: what `verify_group` sees of it, and a digest of just that.

The digest of a group is a sum over its members, so that it does not depend on their order and can
be computed while lines are read. A member that changes, comes or goes changes it.
"""

from errno import EINVAL
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import orjson

from ...types import JsonObject, Key
from ..lines import row_of

DIGEST_BYTES = 16
"""Digests are added modulo the number that follows the largest one of this size."""


class HeldLine(NamedTuple):
    """Where a line is; `checksum` is its crc32."""

    path: str
    offset: int
    size: int
    checksum: int

    @classmethod
    def of(cls, path: Path, offset: int, raw: bytes) -> "HeldLine":
        return cls(str(path.absolute()), offset, len(raw), crc32(raw))

    def read(self) -> bytes:
        """The line; OSError if it is not there any more."""
        with open(self.path, "rb") as stream:
            stream.seek(self.offset)
            raw = stream.read(self.size)
        if crc32(raw) != self.checksum:
            raise OSError(EINVAL, "the file was changed")
        return raw


class HeldMember(NamedTuple):
    """A member in memory. `raw` is its part of a request; `params` are its create params."""

    raw: bytes
    digest: int
    params: JsonObject
    line: JsonObject = {}  # noqa: RUF012 (never changed)
    """The whole line, where a reader asks for it."""
    place: HeldLine | None = None
    """Where the line is, where a reader asks for it."""


def hold(key: Key, line: JsonObject) -> HeldMember:
    """The member that a line of the rollouts file is."""
    block = line["rollout"]
    arm, verdict = block.get("arm"), None
    if "reward" in line:
        verdict = {"reward": line["reward"]}
        for name in block.get("scores", ()):
            if name in line:
                verdict[name] = line[name]
    seen: JsonObject = {"arm": "", "tags": {}, "response": line["response"], "verdict": verdict}
    if isinstance(arm, dict):
        seen |= {"arm": str(arm.get("id") or ""), "tags": arm.get("tags") or {}}
    raw = orjson.dumps(seen)
    hashed = sha256(raw)
    hashed.update(f"{key[3]}\0{key[2]}".encode())
    params = line.get("responses_create_params") or {}
    return HeldMember(raw, int.from_bytes(hashed.digest()[:DIGEST_BYTES]), params)


def hold_line(key: Key, line: JsonObject) -> HeldMember:
    """The member with its whole line, for readers that need no digest."""
    return HeldMember(b"", 0, {}, line)


def task_of(line: JsonObject) -> JsonObject:
    """The task of a line, without what its arm asks."""
    row = row_of(line)
    row.pop("responses_create_params", None)
    return row


def group_digest(total: int) -> str:
    """The sum of the members' digests as text."""
    return f"{total % (1 << 8 * DIGEST_BYTES):032x}"


def build_request(task: JsonObject, members: list[HeldMember | None]) -> bytes:
    """The body for `/verify_group`. The task has the create params of the first member; another
    member has its own if they differ."""
    params = next((member.params for member in members if member is not None), {})
    parts: list[Any] = []
    for member in members:
        if member is None or member.params is params or member.params == params:
            parts.append(b"null" if member is None else member.raw)
        else:
            own = orjson.dumps({"responses_create_params": member.params})
            parts.append(own[:-1] + b"," + member.raw[1:])
    whole = orjson.dumps({**task, "responses_create_params": params})
    return b'{"task":' + whole + b',"members":[' + b",".join(parts) + b"]}"
