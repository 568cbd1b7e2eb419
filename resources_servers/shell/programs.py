"""A program of others in a session: an agent that brings its own loop, and finds its model at one
address."""

import asyncio
import os
import zlib
from base64 import b64decode, b64encode

from pydantic import BaseModel, ConfigDict, Field

from rollout_kit import JsonObject, TaskError
from rollout_kit.serving.sandbox.session.bounds import SessionEnded, SessionRefused
from rollout_kit.serving.sandbox.session.client import ShellSession
from rollout_kit.serving.sandbox.session.doorway import OUTSIDE, leading_to

from .rows import Files

MAX_RATIO = 8
"""Files of more than so many times the bytes of a packed text are not packed at all."""


class ProgramRequest(BaseModel):
    """`host` and `port` are all of the network that the program reaches. Texts of `environment` and
    `files` name it as OUTSIDE, which is replaced by its address in the session."""

    model_config = ConfigDict(extra="forbid")

    command: str = Field(min_length=1)
    host: str
    port: int
    environment: dict[str, str] = {}
    files: Files = {}
    time_limit_s: float = Field(gt=0)
    output_bytes: int = Field(ge=0)
    files_packed: str = Field("", description="From `pack_files`: the program continues in these.")


class PackRequest(BaseModel):
    """Past `max_bytes` nothing is given back."""

    model_config = ConfigDict(extra="forbid")

    max_bytes: int = Field(gt=0)


async def run_program(session: ShellSession, asked: ProgramRequest) -> JsonObject:
    """Lay out the files, run the command to its end, and end all that it has started."""
    if asked.files_packed:
        await _unpack(session, asked.files_packed)
    async with leading_to(session, asked.host, asked.port) as port:
        url = f"http://127.0.0.1:{port}"
        try:
            for path, text in asked.files.items():
                await session.write_bytes(path, text.replace(OUTSIDE, url).encode())
            done = await session.exec(
                asked.command,
                timeout_s=asked.time_limit_s,
                output_bytes=asked.output_bytes,
                environment={
                    name: text.replace(OUTSIDE, url) for name, text in asked.environment.items()
                },
            )
            await session.end_processes()
        except SessionRefused as error:
            raise TaskError(f"the program cannot be started: {error}", status=400) from None
        except SessionEnded as error:
            return {"status": None, "ended_by": str(error), "stdout": "", "stderr": ""}
    return {
        "status": done.status,
        "ended_by": done.ended_by,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "duration_s": round(done.duration_s, 3),
    }


async def pack_files(session: ShellSession, asked: PackRequest) -> JsonObject:
    """All that differs from what the session was made from, as text; empty if it is too large."""
    try:
        file, _ = await session.pack_changes(whole=True, most=MAX_RATIO * asked.max_bytes)
    except SessionRefused:
        return {"files_packed": ""}
    try:
        data = await asyncio.to_thread(_read_packed, file, asked.max_bytes)
    finally:
        os.close(file)
    return {"files_packed": data}


def _read_packed(file: int, max_bytes: int) -> str:
    packer, parts, size = zlib.compressobj(1), list[bytes](), 0
    while part := os.read(file, 1 << 20):
        parts.append(packer.compress(part))
        size += len(parts[-1])
        if size > max_bytes:
            return ""
    return b64encode(b"".join([*parts, packer.flush()])).decode()


async def _unpack(session: ShellSession, packed: str) -> None:
    file = os.memfd_create("files", os.MFD_CLOEXEC)
    try:
        most = session.limits.disk_mb << 20
        await asyncio.to_thread(_write_unpacked, packed, file, most)
        await session.unpack(file, whole=True)
    except (ValueError, zlib.error, SessionRefused) as error:
        raise TaskError(f"the files of the snapshot cannot be written: {error}") from None
    finally:
        os.close(file)


def _write_unpacked(packed: str, file: int, most: int) -> None:
    unpacker, data = zlib.decompressobj(), b64decode(packed, validate=True)
    while data and not unpacker.eof:
        part = unpacker.decompress(data, 1 << 20)
        data = unpacker.unconsumed_tail
        if (most := most - os.write(file, part)) < 0:
            raise ValueError("they are larger than disk_mb")
    os.lseek(file, 0, os.SEEK_SET)
