"""How the end of a session is verified."""

import asyncio
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollout_kit import JsonObject, VerifyError
from rollout_kit.serving.sandbox.session.bounds import SessionRefused
from rollout_kit.serving.sandbox.session.client import ShellSession

from .rows import CommandVerifier, Contains, FilesVerifier, FunctionVerifier, ShellRequest

MAX_OUTPUT = 4_000
"""Bytes of the verifier's output that a rollout keeps."""


@dataclass(frozen=True, slots=True)
class Judged:
    reward: float
    details: JsonObject = field(default_factory=dict)


async def run_command(
    wanted: CommandVerifier, body: ShellRequest, ended: ShellSession, fresh: ShellSession
) -> Judged:
    """Run the command in `fresh`, which has the row's start, over the kept files of `ended`."""
    keep = wanted.keep or [body.workdir]
    file = await ended.pack(keep)
    try:
        await fresh.unpack(file, replaced=keep)
    except SessionRefused as error:
        return Judged(0.0, {"verifier_error": f"the final files cannot be verified: {error}"})
    finally:
        os.close(file)
    for path, text in wanted.files.items():
        await write_apart(fresh, path, text)
    run = await fresh.exec(wanted.command, timeout_s=wanted.timeout_s, output_bytes=MAX_OUTPUT)
    details: JsonObject = {
        "verifier_status": run.status,
        "verifier_ended_by": run.ended_by,
        "verifier_output": run.stdout + run.stderr,
    }
    if run.ended_by:
        return Judged(0.0, details)
    if wanted.reward_file is None:
        return Judged(float(run.status == 0), details)
    try:
        return Judged(read_reward(await fresh.read_bytes(wanted.reward_file)), details)
    except SessionRefused as error:
        return Judged(0.0, {**details, "verifier_error": str(error)})


async def write_apart(session: ShellSession, path: str, text: str) -> None:
    """Write a file of the verifier, whatever the policy has left at its place or above it."""
    script = (
        'p="$1"; d="$(dirname "$p")"; q="$d"; while [ "$q" != / ]; do'
        ' if [ -L "$q" ] || { [ -e "$q" ] && [ ! -d "$q" ]; }; then rm -f "$q"; fi;'
        ' q="$(dirname "$q")"; done; mkdir -p "$d" && rm -rf "$p" && cat > "$p"'
    )
    command = f'set -- "$TARGET"; {script}'
    given = {"TARGET": path}
    done = await session.exec(command, stdin=text.encode(), cwd="/", environment=given)
    if done.status:
        raise VerifyError(f"a file of the verifier could not be written: {path}: {done.stderr}")


def read_reward(raw: bytes) -> float:
    """The number in a reward file; SessionRefused if there is none."""
    try:
        found = orjson.loads(raw.strip())
    except orjson.JSONDecodeError:
        raise SessionRefused("the reward file holds no number") from None
    if isinstance(found, dict):
        found = found.get("reward", next(iter(found.values()), None))
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise SessionRefused("the reward file holds no number")
    return float(found)


async def compare_files(wanted: FilesVerifier, ended: ShellSession) -> Judged:
    wrong: dict[str, str] = {}
    for path, expected in wanted.expected.items():
        try:
            found: str | None = (await ended.read_bytes(path)).decode(errors="replace")
        except SessionRefused:
            found = None
        if expected is None:
            kind = (await ended.call("stat", paths=[path]))[0][path]
            if kind is not None:
                wrong[path] = "it must not be there"
        elif found is None:
            wrong[path] = "it cannot be read"
        elif isinstance(expected, Contains):
            if missing := [each for each in expected.contains if each not in found]:
                wrong[path] = f"it lacks {missing[0][:100]!r}"
        elif found.rstrip("\n") != expected.rstrip("\n"):
            wrong[path] = "its text is another one"
    return Judged(float(not wrong), {"wrong_files": wrong})


async def call_function(
    wanted: FunctionVerifier,
    functions: dict[str, Callable[..., Any]],
    body: ShellRequest,
    ended: ShellSession,
) -> Judged:
    """A function of the server's owner, with files that are only text for it."""
    files: dict[str, str | None] = {}
    for path in wanted.paths:
        try:
            files[path] = (await ended.read_bytes(path)).decode(errors="replace")
        except SessionRefused:
            files[path] = None
    found = await asyncio.to_thread(functions[wanted.name], files, body.model_dump())
    details = (
        {name: value for name, value in found.items() if name != "reward"}
        if isinstance(found, dict)
        else {}
    )
    reward = found["reward"] if isinstance(found, dict) else found
    return Judged(float(reward), details)
