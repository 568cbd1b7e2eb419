"""A harness that does all that harnesses do to their conversations, with OpenAI's and Anthropic's
clients: it calls tools, edits, shortens and branches, asks twice, leaves early, and asks aside."""

import asyncio
import json
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import anthropic
import openai

MOST_TOKENS = 48

MOST_ITEMS = 48
"""Longer conversations are shortened."""

DEEDS = (
    *("go on", "go on", "go on", "tool", "tool", "tool", "parallel", "edit", "prune", "shorten"),
    *("sub-agent", "again", "leave", "aside", "other API"),
)

ABOUT = "Add two integers"

ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


@dataclass(frozen=True)
class Said:
    """A message, in no API's form. `calls` are id, name and arguments."""

    role: str
    text: str
    calls: tuple[tuple[str, str, str], ...] = ()
    call_id: str = ""


class Chat:
    """Chat Completions."""

    def __init__(self, url: str, key: str) -> None:
        self.client: Any = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=600)

    async def ask(self, system: str, said: list[Said], *, stream: bool, aside: bool) -> Said:
        asked: dict[str, Any] = {
            "model": "any",
            "messages": [{"role": "system", "content": system}, *map(self._write, said)],
            "max_completion_tokens": MOST_TOKENS,
        }
        if not aside:
            tool = {"name": "add", "description": ABOUT, "parameters": ADD}
            asked["tools"] = [{"type": "function", "function": tool}]
        if stream:
            async with self.client.chat.completions.stream(**asked) as events:
                try:
                    found = await events.get_final_completion()
                except openai.LengthFinishReasonError as error:  # the helper refuses cut off calls
                    found = error.completion
        else:
            found = await self.client.chat.completions.create(**asked)
        message = found.choices[0].message
        calls = [
            (each.id, each.function.name, each.function.arguments)
            for each in message.tool_calls or ()
        ]
        return Said("assistant", message.content or "", tuple(calls))

    def _write(self, each: Said) -> dict[str, Any]:
        if each.role == "tool":
            return {"role": "tool", "tool_call_id": each.call_id, "content": each.text}
        calls = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": given}}
            for call_id, name, given in each.calls
        ]
        return {"role": each.role, "content": each.text, **({"tool_calls": calls} if calls else {})}


class Messages:
    """Anthropic's API."""

    def __init__(self, url: str, key: str) -> None:
        place = url.removesuffix("/v1")
        self.client: Any = anthropic.AsyncAnthropic(
            base_url=place, api_key=key, max_retries=0, timeout=600
        )

    async def ask(self, system: str, said: list[Said], *, stream: bool, aside: bool) -> Said:
        tool = {"name": "add", "description": ABOUT, "input_schema": ADD}
        asked: dict[str, Any] = {
            "model": "any",
            "system": system,
            "messages": [*map(self._write, said)],
            "max_tokens": MOST_TOKENS,
            **({} if aside else {"tools": [tool]}),
        }
        if stream:
            async with self.client.messages.stream(**asked) as events:
                found = await events.get_final_message()
        else:
            found = await self.client.messages.create(**asked)
        text = "".join(block.text for block in found.content if block.type == "text")
        calls = [
            (block.id, block.name, json.dumps(block.input))
            for block in found.content
            if block.type == "tool_use"
        ]
        return Said("assistant", text, tuple(calls))

    def _write(self, each: Said) -> dict[str, Any]:
        if each.role == "tool":
            result = {"type": "tool_result", "tool_use_id": each.call_id, "content": each.text}
            return {"role": "user", "content": [result]}
        used = [
            {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(given)}
            for call_id, name, given in each.calls
        ]
        text = [{"type": "text", "text": each.text}] if each.text or not used else []
        return {"role": each.role, "content": [*text, *used]}


class Responses:
    """OpenAI's Responses API."""

    def __init__(self, url: str, key: str) -> None:
        self.client: Any = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=600)

    async def ask(self, system: str, said: list[Said], *, stream: bool, aside: bool) -> Said:
        function = {"name": "add", "description": ABOUT, "parameters": ADD}
        tool = {"type": "function", "strict": None, **function}
        asked: dict[str, Any] = {
            "model": "any",
            "instructions": system,
            "input": [item for each in said for item in self._write(each)],
            "max_output_tokens": MOST_TOKENS,
            **({} if aside else {"tools": [tool]}),
        }
        if stream:
            *_, last = [
                each async for each in await self.client.responses.create(stream=True, **asked)
            ]
            found = last.response  # the client's own helper knows no response that was cut off
        else:
            found = await self.client.responses.create(**asked)
        calls = [
            (item.call_id, item.name, item.arguments)
            for item in found.output
            if item.type == "function_call"
        ]
        return Said("assistant", found.output_text, tuple(calls))

    def _write(self, each: Said) -> list[dict[str, Any]]:
        if each.role == "tool":
            called = {"call_id": each.call_id, "output": each.text}
            return [{"type": "function_call_output", **called}]
        calls = [
            {"type": "function_call", "call_id": call_id, "name": name, "arguments": given}
            for call_id, name, given in each.calls
        ]
        text = [{"role": each.role, "content": each.text}] if each.text or not calls else []
        return [*text, *calls]


Api = Chat | Messages | Responses


async def run(task: str, client: Any, shell: Any) -> None:
    draw = random.Random(task)
    kinds = [kind(client.base_url, client.api_key) for kind in (Chat, Messages, Responses)]
    async with AsyncExitStack() as stack:
        for kind in kinds:
            await stack.enter_async_context(kind.client)
        draw.shuffle(kinds)
        await Session(draw, kinds).run()


class Session:
    """What one rollout does: 3 to 30 calls."""

    def __init__(self, draw: random.Random, apis: list[Api]) -> None:
        self.draw, self.apis = draw, apis
        self.num_left = draw.randint(3, 30)

    async def run(self) -> None:
        said = await self.ask([self.user()])
        while self.num_left > 0:
            said = await self.do(self.draw.choice(DEEDS), said)
            if len(said) > MOST_ITEMS:
                said = await self.ask([Said("user", f"Summary: {len(said)} messages so far.")])

    async def do(self, deed: str, said: list[Said]) -> list[Said]:
        """The conversation after a deed."""
        if deed == "tool":
            return await self.ask([*said, self.user("Use the tool: ")])
        if deed == "parallel":
            both = [[*said, self.user()], [*said, self.user("Use the tool: ")]]
            return self.draw.choice(await asyncio.gather(*map(self.ask, both)))
        if deed == "edit":
            return await self.ask([*self.change(said, "assistant", "It is 3."), self.user()])
        if deed == "prune":
            return await self.ask([*self.change(said, "tool", "[pruned]"), self.user()])
        if deed == "shorten":
            return await self.ask([said[0], Said("user", f"Summary: {len(said)} messages.")])
        if deed == "sub-agent":
            helped = await self.ask([self.user()], "You help a calculator.")
            await self.ask([*helped, self.user()], "You help a calculator.")
            return said
        if deed == "again":
            at = max(number for number, each in enumerate(said) if each.role != "assistant")
            return await self.ask(said[: at + 1])
        if deed == "leave":
            return await self.leave([*said, self.user()])
        if deed == "aside":
            await self.ask([self.user()], "Write a title.", aside=True)
            return said
        if deed == "other API":
            self.draw.shuffle(self.apis)
        return await self.ask([*said, self.user()])

    async def leave(self, said: list[Said]) -> list[Said]:
        """Stop waiting at some time, and ask again."""
        task = asyncio.ensure_future(self.ask(said))
        for _ in range(self.draw.randrange(200)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await self.ask(said)

    async def ask(
        self, said: list[Said], system: str = "You are a calculator.", aside: bool = False
    ) -> list[Said]:
        """The conversation with the reply, and the outputs of its calls."""
        self.num_left -= 1
        is_streamed = self.draw.random() < 0.5
        reply = await self.apis[0].ask(system, said, stream=is_streamed, aside=aside)
        return [*said, reply, *(Said("tool", "42", (), call[0]) for call in reply.calls)]

    def user(self, begin: str = "What is ") -> Said:
        return Said("user", f"{begin}{self.draw.randrange(99)}+{self.draw.randrange(99)}?")

    def change(self, said: list[Said], role: str, text: str) -> list[Said]:
        """The conversation with one message of a role in other words."""
        found = [n for n, each in enumerate(said) if each.role == role and not each.calls]
        if not found:
            return said
        at = self.draw.choice(found)
        return [*said[:at], Said(role, text, (), said[at].call_id), *said[at + 1 :]]
