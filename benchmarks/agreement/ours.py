"""Verdicts of our servers, for the comparisons in this folder."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from rollout_kit.api.testing import ScriptedModel, making, mount
from rollout_kit.authoring.examination import make_judges, make_trusting
from rollout_kit.errors import RolloutError
from rollout_kit.responses import make_response, message_item
from rollout_kit.serving import registry
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject

AT_ONCE = 16
"""Verdicts at the same time."""

FIELDS = {"responses_create_params": {"input": [{"role": "user", "content": "?"}]}}
"""What every row has and no verdict depends on."""


async def verify(
    name: str,
    asked: Iterable[tuple[JsonObject, str | list[JsonObject]]],
    *,
    judge: Callable[[str], str] | None = None,
    **settings: Any,
) -> list[JsonObject | RolloutError]:
    """The verdict on each row and answer, in their order, or the error that left none. An answer is
    a text, or the items of a response.

    `settings` are keys of the server; without any it is the server that `ng_test` examines. `judge`
    replies to what its judges are asked.
    """
    server = registry.load("resources_servers", name)
    places = asyncio.Semaphore(AT_ONCE)
    factory = making(server, **settings) if settings else make_trusting(server)
    judges = make_judges(server)
    if judge is not None:
        judges = {each: _imitate(judge) for each in judges}
    async with mount({**judges, name: factory}) as peers:

        async def one(
            fields: JsonObject, answer: str | list[JsonObject]
        ) -> JsonObject | RolloutError:
            row = {**FIELDS, **fields}
            items = [message_item(answer)] if isinstance(answer, str) and answer else answer or []
            response = make_response("m", items, None)
            async with places:
                try:
                    with entered(Session()):
                        await peers.call(name, "/seed_session", row, dict)
                        return await peers.call(
                            name, "/verify", {**row, "response": response}, dict
                        )
                except RolloutError as error:
                    return error

        return await asyncio.gather(*(one(*each) for each in asked))


def _imitate(judge: Callable[[str], str]) -> Callable[[Any, str], ScriptedModel]:
    def reply(params: JsonObject) -> str:
        return judge(params["input"][-1]["content"])

    return lambda peers, name: ScriptedModel(reply, peers, name)


def require(verdict: JsonObject | RolloutError) -> JsonObject:
    """The verdict; the error is raised."""
    if isinstance(verdict, RolloutError):
        raise verdict
    return verdict


def shorten(text: str, start: int = 60, end: int = 29) -> str:
    """A text on one line, with so many characters of its start and end."""
    text = text.replace("\n", "⏎")
    return text if len(text) <= start + end + 1 else f"{text[:start]}…{text[-end:]}"
