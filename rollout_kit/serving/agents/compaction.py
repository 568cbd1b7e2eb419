"""The conversation of a rollout: all of it, as its line keeps it, and what the policy still reads.

Compaction makes what the policy reads shorter. From then on its prompts do not continue the tokens
of earlier turns, so it begins a new chain: a new sequence for a trainer. Nothing is lost in the
line: the output has every item, and `compactions` says what the policy no longer read.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ...errors import ModelError
from ...responses import (
    USER_CALLS,
    assistant_text,
    content_texts,
    function_calls,
    reasoning_item,
    total_tokens,
)
from ...trajectory import TOKEN_FIELDS, VERSION_FIRST, VERSION_LAST, without_tokens
from ...types import JsonObject
from ..gymnasium import observation_item
from .turns import Turns

SUMMARY_PROMPT = """\
The conversation is getting too long. Write a summary that replaces it: the goal, what was done \
and found so far with all values that are still needed, and what is left to do. Call no tool.\
"""

SUMMARY = "Summary of the conversation so far:\n"

WORTH = 0.2
"""A smaller share of the conversation is not dropped: each time the model reads the rest again."""


class CompactionConfig(BaseModel):
    """When a conversation is shortened, and how."""

    model_config = ConfigDict(extra="forbid")

    how: Literal["summary", "drop_tool_outputs"] = Field(
        "summary",
        description="Replace the older turns by a summary that the policy writes, or only the"
        " outputs of their tools by a note.",
    )
    above_tokens: int = Field(
        ge=1, description="Shorten it after a call of more tokens, prompt and answer together."
    )
    keep_turns: int = Field(2, ge=1, description="The last turns, which stay as they are.")
    prompt: str = Field(SUMMARY_PROMPT, min_length=1, description="What asks for a summary.")


class Transcript:
    """One conversation. `output` has every item; `shown` is what the policy reads of it."""

    def __init__(self, config: CompactionConfig | None = None) -> None:
        self.output: list[JsonObject] = []
        self.shown: list[JsonObject] = []
        self.chain = 0
        self.compactions: list[JsonObject] = []
        self._config = config
        self._starts: list[tuple[int, int]] = []
        """Where each turn of the policy begins, in `shown` and in `output`."""

    def add(self, items: Iterable[JsonObject]) -> None:
        for item in items:
            self.output.append(item)
            self.shown.append(_without_calls(item) if USER_CALLS in item else item)

    async def ask(
        self, turns: Turns, request: JsonObject, asked: Sequence[JsonObject], last: JsonObject
    ) -> JsonObject:
        """The next response of the policy, which is added. `last` is the one before it."""
        if self._config is not None and last:
            await self._compact(self._config, turns, request, asked, last)
        self._starts.append((len(self.shown), len(self.output)))
        response = await turns.ask(
            {**request, "input": [*asked, *self.shown]}, chain=self.chain, at=len(self.output)
        )
        self.add(response["output"])
        return response

    async def _compact(
        self,
        config: CompactionConfig,
        turns: Turns,
        request: JsonObject,
        asked: Sequence[JsonObject],
        last: JsonObject,
    ) -> None:
        used = total_tokens(last)
        if not used:
            raise ModelError("compaction needs `usage.total_tokens` of each answer")
        if used <= config.above_tokens or len(self._starts) <= config.keep_turns:
            return
        cut, until = self._starts[-config.keep_turns]
        if _size(self.shown[:cut]) < WORTH * _size(self.shown):
            return
        if config.how == "summary":
            kept = await self._summarize(config, turns, request, asked, cut)
        else:
            kept = _empty_outputs(self.shown, cut)
        if kept is None:
            return
        dropped = _size(self.shown) - _size(kept)
        at = len(self.output)
        self.chain += 1
        self.compactions.append(
            {
                "how": config.how,
                "at": at,
                "until": until,
                "characters": dropped,
                "chain": self.chain,
            }
        )
        moved = len(kept) - len(self.shown)
        starts = [(start + moved, place) for start, place in self._starts[-config.keep_turns :]]
        # what the model server would continue are the tokens of another prompt
        self.shown, self._starts = [without_tokens(item) for item in kept], starts

    async def _summarize(
        self,
        config: CompactionConfig,
        turns: Turns,
        request: JsonObject,
        asked: Sequence[JsonObject],
        cut: int,
    ) -> list[JsonObject] | None:
        """The policy's summary and the items from `cut`; None if it wrote none. The summary is the
        last turn of its chain. In the output it is reasoning, so it is no part of the answer."""
        question = observation_item(config.prompt)
        response = await turns.ask(
            {**request, "input": [*asked, *self.shown, question]},
            chain=self.chain,
            at=len(self.output),
        )
        items = response["output"]
        text = assistant_text(items).strip()
        if not text or function_calls(items) or response.get("incomplete_details"):
            self.compactions.append({"how": config.how, "at": len(self.output), "failed": True})
            return None
        fields = TOKEN_FIELDS | {VERSION_FIRST, VERSION_LAST}
        sampled = {name: value for name, value in items[-1].items() if name in fields}
        self.output.append({**reasoning_item(text), **sampled})
        return [observation_item(SUMMARY + text), *self.shown[cut:]]


def _empty_outputs(items: Sequence[JsonObject], until: int) -> list[JsonObject] | None:
    """The items with notes in place of tool outputs before `until`; None if that drops little."""
    kept = [
        _note(item) if place < until and item.get("type") == "function_call_output" else item
        for place, item in enumerate(items)
    ]
    whole = _size(items)
    return kept if whole - _size(kept) >= WORTH * whole else None


def _note(item: JsonObject) -> JsonObject:
    text = "\n".join(content_texts(item.get("output")))
    note = f"[left out: {len(text)} characters]"
    return {**item, "output": note} if len(note) < len(text) else item


def _size(items: Iterable[JsonObject]) -> int:
    """Characters of texts, outputs and arguments."""
    return sum(
        sum(map(len, content_texts(item.get("content"))))
        + sum(map(len, content_texts(item.get("output"))))
        + len(str(item.get("arguments") or ""))
        for item in items
    )


def _without_calls(item: JsonObject) -> JsonObject:
    return {name: value for name, value in item.items() if name != USER_CALLS}
