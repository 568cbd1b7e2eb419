"""ng_ctl: list running collections, and steer them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from ..collecting.live.client import AtHead, Here
from ..collecting.live.schema import Collections, LiveList, SteerRequest, encode
from ..collecting.live.snapshot import KnobChange
from ..collecting.pacing.bill import dollars
from ..config.keys import NO_KNOBS, CtlConfig
from ..errors import ConfigError, suggest
from ..types import JsonObject
from . import entry

WORDS = {"pause": "+paused=true", "resume": "+paused=false", "stop": "+stop=true"}

POLL_S = 0.2

COLUMNS = ("run_id", "state", "done", "failed", "in flight", "reward", "cost", "time", "output")


def main(words: list[str]) -> int:
    command = entry.parse_keys([_read(word) for word in words], CtlConfig)
    asyncio.run(_ask(command, request_of(command)))
    return 0


async def _ask(command: CtlConfig, asked: SteerRequest) -> None:
    def show(found: Any, format_text: Any) -> None:
        plain = msgspec.json.decode(encode(found))
        entry.show(plain, format_text, as_json=command.json_output)

    async with _reached(command) as collections:
        if not (asked.steer or asked.output or asked.run):
            return show(await collections.live(), format_list)
        reply = await collections.ask(asked)
        while command.wait and reply.state == "pausing":
            await asyncio.sleep(POLL_S)
            now = await collections.ask(SteerRequest(run=asked.run, output=asked.output))
            reply = msgspec.structs.replace(reply, state=now.state, snapshot=now.snapshot)
        if asked.steer:
            return show(reply, format_changes)
        show(LiveList(collections=[reply.snapshot]), format_list)


@asynccontextmanager
async def _reached(command: CtlConfig) -> AsyncIterator[Collections]:
    """Context with the collections of this machine, or of that of the head server."""
    if "head_server" not in command.model_fields_set:
        yield Here()
        return
    from ..launch.head_client import found_head  # sockets need no HTTP

    async with found_head(command.head_server, command.auth_token) as head:
        yield AtHead(head)


def request_of(command: CtlConfig) -> SteerRequest:
    """The request of a command; ConfigError if its keys do not fit together."""
    steer: JsonObject = {}
    for name in command.model_fields_set - NO_KNOBS:
        value = getattr(command, name)
        steer[name] = value.spell() if hasattr(value, "spell") else value
    if command.stop:
        steer["stop"] = "now" if command.now else "drain"
    elif command.now:
        raise ConfigError("now: it needs stop: ng_ctl stop +now=true")
    output = command.output_jsonl_fpath
    return SteerRequest(
        run=command.run_id or "",
        output=str(Path.cwd() / output.expanduser()) if output else "",
        steer=steer,
        dry_run=command.dry_run,
        sender="ng_ctl",
    )


def format_changes(reply: Mapping[str, Any]) -> str:
    """A line for each change, and the state of the run."""
    changes = [str(KnobChange(**each)) for each in reply["changes"]]
    if reply["dry_run"]:
        changes = [f"would change  {each}" for each in changes]
    state, in_flight = reply["state"], reply["snapshot"]["counts"]["in_flight"]
    is_now = any((each["what"], each["new"]) == ("run", "now") for each in reply["changes"])
    may = "are cancelled" if is_now else "may finish"
    going_on = f": {in_flight:,} in flight {may}" if state in ("pausing", "stopping") else ""
    return "\n".join([*(changes or ["nothing changes: it is so already"]), f"{state}{going_on}"])


def format_list(found: Mapping[str, Any]) -> str:
    """A line for each collection, and one for each that cannot be asked."""
    listed, problems = found["collections"], found["problems"]
    if not (listed or problems):
        return "No collection of yours runs on this machine."
    rows = [COLUMNS, *map(_cells, listed)] if listed else []
    return "\n".join([*entry.align(rows), *problems])


def _cells(snapshot: Mapping[str, Any]) -> tuple[str, ...]:
    counts, reward, cost = snapshot["counts"], snapshot["reward"], snapshot["cost"]
    planned = "" if counts["planned"] is None else f"/{counts['planned']:,}"
    return (
        snapshot["run_id"],
        snapshot["state"],
        f"{counts['done']:,}{planned}",
        f"{counts['failed']:,}",
        f"{counts['in_flight']:,}/{snapshot['parallel']['limit']:,}",
        f"{reward['value']:.3f}" if reward else "-",
        dollars(cost["usd"]) if cost and cost["usd"] is not None else "-",
        f"{snapshot['elapsed_s']:,.0f} s",
        snapshot["output"] or "-",
    )


def _read(word: str) -> str:
    """A word as a key: `pause`, `parallelism=64` and `+parallelism=64` are the same as in YAML."""
    if word.startswith(("+", "-", "~")):
        return word
    if "=" in word:
        return f"+{word}"
    if word not in WORDS:
        raise ConfigError(
            f"{word}: expected pause, resume, stop, or a key with its value{suggest(word, WORDS)}"
        )
    return WORDS[word]
