"""Snapshots of a rollout: the files of its session, and the calls that were answered before.

A program that is started again in these files does not ask for those calls again. So the journal
has each call with what it adds to its conversation, from which the record of the calls is made.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ...errors import RolloutError
from ...items import track
from ...session import SNAPSHOT, SNAPSHOT_DATA, Session, TurnLog
from ...types import JsonObject
from ..agents.turns import call_of
from .lanes import KnownCalls, RecordedCall
from .layout import join_chain

log = logging.getLogger(__name__)

CALL = "call"
"""Field of a stored turn: what the call adds to its conversation."""


@dataclass(slots=True)
class Snapshots:
    """Takes a snapshot before every `every` calls of the model, while the program waits. `pack`
    gives the files of the session; empty if they are too large."""

    every: int
    pack: Callable[[Session], Awaitable[str]]
    log: TurnLog | None = None
    num_before: int = 0
    """Calls before the last snapshot."""

    def begin(self, session: Session, calls: Sequence[RecordedCall]) -> asyncio.Task[None] | None:
        """Begin to take one, if it is due. The program may only go on after it."""
        if self.log is None or len(calls) - self.num_before < self.every:
            return None
        self.num_before = len(calls)
        return asyncio.create_task(self._take(session, [call.id for call in calls]))

    async def _take(self, session: Session, names: list[str]) -> None:
        assert self.log is not None
        try:
            data = await self.pack(session)
        except RolloutError as error:  # the run can do without it
            log.warning("no snapshot was taken: %s", error.message)
            return
        if data:
            reported = self.log.report({SNAPSHOT: names, SNAPSHOT_DATA: data})
            if reported is not None:
                await reported


def describe_call(call: RecordedCall) -> JsonObject:
    """The call as the journal has it."""
    parent = call.parent
    known: JsonObject = {
        "id": call.id,
        "at": call.asked_at.hex(),
        "ends": [end.hex() for end in call.ends],
        "new": call.new,
        "system": call.system,
        "has_tools": call.has_tools,
        "why": call.why,
    }
    if parent is not None:
        known["parent"] = parent.id
    if parent is None or parent.tools != call.tools:
        known["tools"] = call.tools
    return known


def restore_calls(
    turns: Sequence[JsonObject],
    snapshot: JsonObject,
    known: KnownCalls,
    tips: dict[int, RecordedCall],
) -> list[RecordedCall]:
    """The calls before a snapshot; none if one of them is not stored."""
    stored = {turn[CALL]["id"]: turn for turn in turns if CALL in turn}
    if any(name not in stored for name in snapshot[SNAPSHOT]):
        return []
    found: dict[str, RecordedCall] = {}
    for name in snapshot[SNAPSHOT]:
        turn, said = stored[name], stored[name][CALL]
        if (parent := found.get(said.get("parent", ""))) is None and "parent" in said:
            return []
        response = turn["response"]
        call = RecordedCall(
            bytes.fromhex(said["at"]),
            parent,
            said["why"],
            list(map(track, said["new"])),
            said["system"],
            said["has_tools"],
            {**response, "output": list(map(track, response["output"]))},
            call_of(response, by="policy", chain=0, cost_usd=turn.get("cost_usd")),
            tools=said["tools"] if "tools" in said or parent is None else parent.tools,
            request=turn["request"],
            id=name,
            ends=list(map(bytes.fromhex, said["ends"])),
        )
        join_chain(call, tips)
        known.add(call)
        found[name] = call
    return list(found.values())
