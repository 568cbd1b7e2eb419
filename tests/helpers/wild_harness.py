"""A harness that does all that harnesses do to their conversations, with OpenAI's and Anthropic's
clients: it edits, shortens and branches them, asks twice, and asks aside."""

import asyncio
import random
from typing import Any

import anthropic
import openai

MOST_TOKENS = 24

DEEDS = ("go on", "go on", "go on", "parallel", "edit", "shorten", "sub-agent", "again", "aside")


class OfOpenAi:
    def __init__(self, client: Any) -> None:
        self.client = openai.AsyncOpenAI(
            base_url=client.base_url, api_key=client.api_key, max_retries=0
        )

    async def ask(self, system: str, messages: list[Any], *, stream: bool, aside: bool) -> str:
        asked: dict[str, Any] = {
            "model": "any",
            "messages": [{"role": "system", "content": system}, *messages],
            "max_completion_tokens": MOST_TOKENS,
        }
        if not aside:
            tool = {"name": "noop", "parameters": {"type": "object", "properties": {}}}
            asked["tools"] = [{"type": "function", "function": tool}]
        if stream:
            text = ""
            async for chunk in await self.client.chat.completions.create(stream=True, **asked):
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            return text
        found = await self.client.chat.completions.create(**asked)
        return found.choices[0].message.content or ""


class OfAnthropic:
    def __init__(self, client: Any) -> None:
        url = client.base_url.removesuffix("/v1")
        self.client = anthropic.AsyncAnthropic(base_url=url, api_key=client.api_key, max_retries=0)

    async def ask(self, system: str, messages: list[Any], *, stream: bool, aside: bool) -> str:
        tool = {"name": "noop", "input_schema": {"type": "object", "properties": {}}}
        asked: dict[str, Any] = {
            "model": "any",
            "system": system,
            "messages": messages,
            "max_tokens": MOST_TOKENS,
            **({} if aside else {"tools": [tool]}),
        }
        if stream:
            async with self.client.messages.stream(**asked) as events:
                found = await events.get_final_message()
        else:
            found = await self.client.messages.create(**asked)
        return "".join(block.text for block in found.content if block.type == "text")


async def run(task: str, client: Any, shell: Any) -> None:
    draw = random.Random(task)
    kind = draw.choice((OfOpenAi, OfAnthropic))(client)
    async with kind.client:
        await converse(draw, kind)


async def converse(draw: random.Random, kind: OfOpenAi | OfAnthropic) -> None:
    system = "You are a calculator."

    async def ask(messages: list[Any], system: str = system, aside: bool = False) -> list[Any]:
        text = await kind.ask(system, messages, stream=draw.random() < 0.5, aside=aside)
        return [*messages, {"role": "assistant", "content": text or "…"}]

    def user() -> dict[str, Any]:
        return {"role": "user", "content": f"What is {draw.randrange(99)}+{draw.randrange(99)}?"}

    messages = await ask([user()])
    for _ in range(draw.randint(2, 9)):
        deed = draw.choice(DEEDS)
        if deed == "parallel":
            both = [[*messages, user()], [*messages, user()]]
            found = await asyncio.gather(*(ask(each) for each in both))
            messages = found[0]
        elif deed == "edit":
            at = draw.randrange(len(messages) // 2) * 2 + 1
            edited = {"role": "assistant", "content": "It is 3."}
            messages = await ask([*messages[:at], edited, *messages[at + 1 :], user()])
        elif deed == "shorten":
            summary = {"role": "user", "content": f"Summary: {len(messages)} messages so far."}
            messages = await ask([summary])
        elif deed == "sub-agent":
            helped = await ask([user()], "You help a calculator.")
            await ask([*helped, user()], "You help a calculator.")
        elif deed == "again":
            await ask(messages[:-1])
        elif deed == "aside":
            await ask([user()], "Write a title.", aside=True)
        else:
            messages = await ask([*messages, user()])
