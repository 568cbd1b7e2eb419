"""What the gateway knows after a program was started again in the files of a snapshot."""

from typing import Any

import pytest
from test_gateway import CHAT_TOOL, Place, client_of, opening, placed, run

from rollout_kit.responses import message_item
from rollout_kit.serving.gateway.snapshots import Snapshots
from rollout_kit.session import Session
from rollout_kit.trajectory import sequences
from rollout_kit.types import JsonObject

USER = {"role": "user", "content": "and then?"}


def say(params: JsonObject) -> list[JsonObject]:
    return [message_item(f"reply to {len(params['input'])} items")]


async def pack(session: Session) -> str:
    return "files"


def list_requests() -> list[Any]:
    """Requests with branches, an edit, a compaction and a side call. What a model said before is
    what `say` says."""

    def said(messages: list[Any]) -> list[Any]:
        return [*messages, {"role": "assistant", "content": f"reply to {len(messages)} items"}]

    first = opening()
    second = [*said(first), USER]
    third = [*said(second), USER]
    branch = [*said(first), {"role": "user", "content": "a sub-agent's task"}]
    edited = [*second[:2], {"role": "assistant", "content": "other"}, *second[3:]]
    compact = [*first, {"role": "user", "content": "Summary: …"}]
    return [first, second, third, branch, edited, compact, [*said(third), USER], first]


async def ask(place: Place, requests: list[Any]) -> None:
    async with client_of(place) as client:
        for messages in requests:
            await client.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL])


def describe(place: Place) -> list[Any]:
    """The response and the turns, without ids and times."""
    response = place.finish()
    items = [
        {name: value for name, value in item.items() if name != "id"} for item in response["output"]
    ]
    turns = place.stats["turns"]
    block = place.stats["gateway"]
    return [
        items,
        response["usage"],
        response["tools"],
        turns["to"],
        turns["chain"],
        block["chains"],
    ]


@pytest.mark.parametrize("num_before", range(1, 8))
def test_the_record_is_the_same_as_without_an_interruption(num_before: int) -> None:
    async def main() -> None:
        requests = list_requests()
        async with placed(say) as place:
            await ask(place, requests)
            whole = describe(place)
        async with placed(say, snapshots=Snapshots(1, pack)) as place:
            await ask(place, requests[: num_before + 1])
            stored = place.stored
        snapshots = [turn for turn in stored if "snapshot" in turn]
        assert [len(each["snapshot"]) for each in snapshots] == [*range(1, num_before + 1)]
        turns = [turn for turn in stored if "snapshot" not in turn]
        kept = [*turns, snapshots[-1]]
        async with placed(say, kept, snapshots=Snapshots(1, pack)) as place:
            assert place.recorder.files == "files"
            await ask(place, requests[num_before:])
            again = describe(place)
            assert len(place.model.log) == len(requests) - num_before - 1
            block = place.stats["gateway"]
            assert (block["restored"], block["replayed"]) == (num_before, 1)
            found = sequences(place.finish()["output"])
            assert sum(len(each.turns) for each in found) == len(requests)
        assert again == whole

    run(main)


def test_a_snapshot_is_taken_once_enough_calls_were_made() -> None:
    async def main() -> list[int]:
        async with placed(say, snapshots=Snapshots(3, pack)) as place:
            await ask(place, list_requests())
            return [len(turn["snapshot"]) for turn in place.stored if "snapshot" in turn]

    assert run(main) == [3, 6]
