"""A later turn with token ids: the prompt contains the sampled tokens of earlier turns.

vLLM renders, generates and parses in separate requests (`--enable-scale-out`), so its own
tokenizer, chat template and parsers are used. The caller sends the requests.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollout_kit.errors import ModelError
from rollout_kit.rl.suffix import Aligned, Restart, align, is_verbatim, rest_behind
from rollout_kit.serving.endpoints.refusals import read_reply
from rollout_kit.serving.transport.http import Reply
from rollout_kit.serving.transport.loop import gather_all
from rollout_kit.trajectory import SampledTurn
from rollout_kit.types import JsonObject

RENDER = "/v1/chat/completions/render"
GENERATE = "/inference/v1/generate"
DERENDER = "/v1/chat/completions/derender"

MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Names of the limit of generated tokens in vLLM's APIs."""

Ask = Callable[[str, JsonObject], Awaitable[Reply]]
"""Path and body → the reply of one vLLM, whatever its status."""


class Refused(Exception):
    """vLLM did not answer with 200."""

    def __init__(self, reply: Reply, num_prompt_tokens: int) -> None:
        super().__init__(reply.status)
        self.reply, self.num_prompt_tokens = reply, num_prompt_tokens


@dataclass(frozen=True, slots=True)
class LaterTurn:
    """A turn as three chat requests. Without earlier turns, the prompt is vLLM's rendering."""

    whole: JsonObject
    until_last: JsonObject
    """The conversation up to the last sampled turn, without a generation prompt."""
    unthought: JsonObject
    """The whole conversation without reasoning."""
    turns: list[SampledTurn]
    thought: list[bool]
    """For each turn, whether it has reasoning."""


async def completion(turn: LaterTurn, ask: Ask) -> JsonObject:
    """The chat completion; Restart if the turns cannot be continued; Refused."""
    request, prompt = await _request(turn, ask)
    sampling = request["sampling_params"]
    # vLLM computed it from the length of the rendering, which differs
    sampling.pop("max_tokens", None)
    for key in MAX_TOKENS:
        if turn.whole.get(key) is not None:
            sampling["max_tokens"] = turn.whole[key]
    reply = await ask(GENERATE, {**request, "token_ids": prompt})
    generated = read_reply(reply.raw)
    if reply.status != 200 or not isinstance(generated, dict) or not generated.get("choices"):
        raise Refused(reply, len(prompt))
    choice = generated["choices"][0]
    check_ended(choice)
    token_ids = choice["token_ids"] or []
    made = await _parse(turn, generated, prompt, ask)
    stop = choice.get("stop_reason")
    message = made["choices"][0]["message"]
    if isinstance(stop, str) and stop in (message.get("content") or ""):
        message["content"] = message["content"].rpartition(stop)[0]
    told = {"token_ids": token_ids, "weight_versions": choice.get("weight_versions")}
    made["choices"][0] |= told
    made["choices"][0].setdefault("logprobs", choice.get("logprobs"))
    return {**made, "usage": generated.get("usage"), "prompt_token_ids": prompt}


def check_ended(choice: Mapping[str, Any]) -> None:
    """Raise ModelError if vLLM was told to abort the request: the turn is not over."""
    if choice.get("finish_reason") == "abort":
        raise ModelError("vLLM was told to abort the request", status=503, retryable=True)


async def _request(turn: LaterTurn, ask: Ask) -> tuple[JsonObject, list[int]]:
    """vLLM's rendering of the whole conversation, and the prompt to use instead."""
    if not turn.turns:
        request = await _render(turn.whole, ask)
        if request.get("features"):
            raise Restart("the conversation holds more than text")
        return request, request["token_ids"]
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
        # many templates write <think> into the generation prompt and omit it from earlier turns
        bare = await _render({**turn.whole, "add_generation_prompt": False}, ask)
        opening = rest_behind(request["token_ids"], bare["token_ids"])
        if not opening:
            raise
        found = align(turn.turns, request["token_ids"], until_last["token_ids"], opening)
    await _check_thoughts(turn, found, until_last["token_ids"], opening, ask)
    before = [each for one in turn.turns for each in (*one.added, *one.generation)]
    return request, before + found.rest


async def _check_thoughts(
    turn: LaterTurn, found: Aligned, until_last: list[int], opening: list[int], ask: Ask
) -> None:
    """Raise Restart if the template leaves reasoning out of earlier turns: then the model must not
    see it."""
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
    # the actual prompt differs, so its length is not this one's
    reply = await ask(RENDER, {key: body[key] for key in body if key not in MAX_TOKENS})
    if reply.status in (403, 404, 405):
        raise Restart("vLLM runs without --enable-scale-out, so it accepts no token ids")
    request = read_reply(reply.raw)
    if reply.status >= 500 or reply.status == 429:
        raise Refused(reply, 0)
    if reply.status != 200 or not isinstance(request, dict) or not request.get("token_ids"):
        raise Restart(f"vLLM did not render the conversation ({reply.status})")
    return request


async def _parse(turn: LaterTurn, generated: JsonObject, prompt: list[int], ask: Ask) -> Any:
    """The generation as a chat completion; vLLM's parsers find tool calls and reasoning."""
    choice = generated["choices"][0]
    token_ids = choice["token_ids"] or []
    if choice.get("finish_reason") == "stop" and not isinstance(choice.get("stop_reason"), str):
        token_ids = token_ids[:-1]  # the token that ends the turn is no text, as in chat
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
    made = read_reply(reply.raw)
    if reply.status != 200 or not isinstance(made, dict) or not made.get("choices"):
        raise Refused(reply, len(prompt))
    return made
