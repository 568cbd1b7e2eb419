"""A rollout as a member of its group: what `verify_group` sees of it, and a digest of just that.

The digest of a group is a sum over its members, so that it does not depend on their order and can
be computed while lines are read. A member that changes, comes or goes changes it.
"""

from errno import EINVAL
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import orjson

from ...responses import has_provider_data, without_provider_data
from ...types import JsonObject, Key
from ..lines import BOOKKEEPING, arm_block, row_of, verdict_of

DIGEST_BYTES = 16
"""Digests are added modulo the number that follows the largest one of this size."""

NOT_OF_TASK = BOOKKEEPING | {"responses_create_params"}
"""Fields of a row that are no part of the task in a request."""


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

    key: Key
    raw: bytes = b""
    params: JsonObject = {}  # noqa: RUF012 (never changed)
    line: JsonObject = {}  # noqa: RUF012 (never changed)
    """The whole line, where a reader asks for it."""
    place: HeldLine | None = None
    """Where the line is, where a reader asks for it."""

    @property
    def digest(self) -> int:
        """That of what the verifier sees, and of the slot."""
        hashed = sha256(self.raw + _slot_of(self.key.scope, self.key.rollout_index)).digest()
        return int.from_bytes(hashed[:DIGEST_BYTES])


@lru_cache(maxsize=4096)
def _slot_of(scope: str, index: int) -> bytes:
    """What the digest of a member has of its key."""
    return f"{index}\0{scope}".encode()


def hold(key: Key, line: JsonObject, encoded: bytes | None = None) -> HeldMember:
    """The member that a line of the rollouts file is; `encoded` is its response as JSON."""
    arm, verdict = arm_block(line), verdict_of(line)
    response = line["response"] if encoded is None else orjson.Fragment(encoded)
    seen: JsonObject = {"arm": "", "tags": {}, "response": response, "verdict": verdict}
    if isinstance(arm, dict):
        seen |= {"arm": str(arm.get("id") or ""), "tags": arm.get("tags") or {}}
    raw = orjson.dumps(seen)
    if has_provider_data(raw):
        raw = orjson.dumps({**seen, "response": without_provider_data(line["response"])})
    return HeldMember(key, raw, line.get("responses_create_params") or {})


def task_of(line: JsonObject) -> JsonObject:
    """The task of a line, without what its arm asks."""
    return task_of_row(row_of(line))


def task_of_row(row: JsonObject) -> JsonObject:
    """The same for a row of the input."""
    return {name: value for name, value in row.items() if name not in NOT_OF_TASK}


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
