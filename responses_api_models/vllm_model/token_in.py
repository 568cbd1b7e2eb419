"""A later turn, asked for with token ids: what was sampled goes back as it was sampled.

vLLM renders, generates and parses in requests of their own (`--enable-scale-out`), so that the only
tokenizer, chat template and parsers are its own. Nothing here knows how a request gets there.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rollout_kit.endpoints.refusals import parse_json
from rollout_kit.trajectory import SampledTurn
from rollout_kit.transport.http import Reply
from rollout_kit.transport.loop import gather_all
from rollout_kit.types import JsonObject

from .suffix import Aligned, Restart, align, is_verbatim

RENDER = "/v1/chat/completions/render"
GENERATE = "/inference/v1/generate"
DERENDER = "/v1/chat/completions/derender"

MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""What bounds a generation, in all of vLLM's APIs."""

Ask = Callable[[str, JsonObject], Awaitable[Reply]]
"""Path and body → the reply of one vLLM, whatever its status."""


class Refused(Exception):
    """vLLM did not answer with 200."""

    def __init__(self, reply: Reply, num_prompt_tokens: int) -> None:
        super().__init__(reply.status)
        self.reply, self.num_prompt_tokens = reply, num_prompt_tokens


@dataclass(frozen=True, slots=True)
class LaterTurn:
    """A turn with others before it. The three are chat requests."""

    whole: JsonObject
    until_last: JsonObject
    """Up to the last turn that was sampled, and without a generation prompt."""
    unthought: JsonObject
    """The whole, without any reasoning."""
    turns: list[SampledTurn]
    thought: list[bool]
    """Which of the turns have reasoning."""


async def completion(turn: LaterTurn, ask: Ask) -> JsonObject:
    """The chat completion; Restart where the turns cannot be continued; Refused."""
    request, prompt = await _request(turn, ask)
    sampling = request["sampling_params"]
    # it was reckoned from the length of the rendering, which is another
    sampling.pop("max_tokens", None)
    for key in MAX_TOKENS:
        if turn.whole.get(key) is not None:
            sampling["max_tokens"] = turn.whole[key]
    reply = await ask(GENERATE, {**request, "token_ids": prompt})
    generated = parse_json(reply.raw)
    if reply.status != 200 or not isinstance(generated, dict) or not generated.get("choices"):
        raise Refused(reply, len(prompt))
    choice = generated["choices"][0]
    token_ids = choice["token_ids"] or []
    made = await _parse(turn, generated, prompt, ask)
    stop = choice.get("stop_reason")
    message = made["choices"][0]["message"]
    if isinstance(stop, str) and stop in (message.get("content") or ""):
        message["content"] = message["content"].rpartition(stop)[0]
    made["choices"][0]["token_ids"] = token_ids
    made["choices"][0].setdefault("logprobs", choice.get("logprobs"))
    return {**made, "usage": generated.get("usage"), "prompt_token_ids": prompt}


async def _request(turn: LaterTurn, ask: Ask) -> tuple[JsonObject, list[int]]:
    """What vLLM makes of the whole conversation, and the prompt to ask with instead of its own."""
    if not turn.turns[-1].is_ended:
        raise Restart("the turn before was cut off")
    request, until_last = await gather_all(
        _render(each, ask) for each in (turn.whole, turn.until_last)
    )
    if request.get("features"):
        raise Restart("the conversation holds more than text")
    opening: list[int] = []
    try:
        found = align(turn.turns, request["token_ids"], until_last["token_ids"])
    except Restart:
        # many templates write into the generation prompt what they leave out of history: <think>
        bare = await _render({**turn.whole, "add_generation_prompt": False}, ask)
        opening = _behind(request["token_ids"], bare["token_ids"])
        if not opening:
            raise
        found = align(turn.turns, request["token_ids"], until_last["token_ids"], opening)
    await _check_thoughts(turn, found, until_last["token_ids"], opening, ask)
    before = [each for one in turn.turns for each in (*one.added, *one.generation)]
    return request, before + found.rest


async def _check_thoughts(
    turn: LaterTurn, found: Aligned, until_last: list[int], opening: list[int], ask: Ask
) -> None:
    """Restart where the template leaves out of history what the model thought: it is meant to read
    on without it."""
    doubtful = [
        number
        for number, (one, said) in enumerate(zip(turn.turns, found.said, strict=True))
        if turn.thought[number] and not is_verbatim(one, said, opening)
    ]
    if not doubtful:
        return
    rendered = await _render(turn.unthought, ask)
    unthought = align(turn.turns, rendered["token_ids"], until_last, opening)
    if any(found.said[number] == unthought.said[number] for number in doubtful):
        raise Restart("the chat template leaves the reasoning of earlier turns out")


async def _render(body: JsonObject, ask: Ask) -> JsonObject:
    # the prompt that counts is another: its length is not this one's
    reply = await ask(RENDER, {key: body[key] for key in body if key not in MAX_TOKENS})
    if reply.status in (403, 404, 405):
        raise Restart("vLLM runs without --enable-scale-out, and takes no tokens")
    request = parse_json(reply.raw)
    if reply.status >= 500 or reply.status == 429:
        raise Refused(reply, 0)
    if reply.status != 200 or not isinstance(request, dict) or not request.get("token_ids"):
        raise Restart(f"vLLM did not render the conversation ({reply.status})")
    return request


async def _parse(turn: LaterTurn, generated: JsonObject, prompt: list[int], ask: Ask) -> Any:
    """The generation as a chat completion: tool calls and reasoning found by vLLM's own parsers."""
    choice = generated["choices"][0]
    token_ids = choice["token_ids"] or []
    if choice.get("finish_reason") == "stop" and not isinstance(choice.get("stop_reason"), str):
        token_ids = token_ids[:-1]  # as in chat, the token that ends the turn is no text
    if not token_ids:
        message = {"role": "assistant", "content": ""}
        return {"model": generated.get("model"), "choices": [{**choice, "message": message}]}
    shown = {
        **generated,
        "prompt_token_ids": prompt,
        "choices": [{**choice, "token_ids": token_ids}],
    }
    body = {"model": turn.whole.get("model"), "generate_response": shown}
    reply = await ask(DERENDER, {**body, "chat_request": turn.whole, "prompt_tokens": len(prompt)})
    made = parse_json(reply.raw)
    if reply.status != 200 or not isinstance(made, dict) or not made.get("choices"):
        raise Refused(reply, len(prompt))
    return made


def _behind(whole: list[int], start: list[int]) -> list[int]:
    return whole[len(start) :] if whole[: len(start)] == start else []
