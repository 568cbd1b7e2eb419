"""The reward model behind an imitation of vLLM, whose routes, fields and errors are those of its
`entrypoints/pooling`; and batches."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from endpoint import served

import rollout_kit as rk
from rollout_kit.api.testing import OVERS, making, mount, text_response
from rollout_kit.serving.judges.batcher import Batcher
from rollout_kit.serving.judges.reward import RewardModelConfig, read_messages
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

Server = load("resources_servers", "reward_model")

MOST = 2_000
"""Characters that the imitated model reads."""


def logits_of(text: str, num_classes: int) -> list[float]:
    """The imitated model: scores that depend on the text alone."""
    value = sum(number * ord(character) for number, character in enumerate(text, 1))
    return [math.sin(value + each) * 3 for each in range(num_classes)]


def activate(logits: list[float]) -> list[float]:
    if len(logits) == 1:
        return [1 / (1 + math.exp(-logits[0]))]
    total = sum(map(math.exp, logits))
    return [math.exp(each) / total for each in logits]


class Imitation:
    """vLLM with a reward model. Keeps the bodies that it `saw`."""

    def __init__(self, num_classes: int = 1) -> None:
        self.num_classes, self.url = num_classes, ""
        self.saw: list[dict[str, Any]] = []
        self.faults: list[web.Response] = []
        self.in_flight = self.most_in_flight = 0
        self.change: Callable[[dict[str, Any]], Any] = lambda reply: reply

    def texts_of(self, path: str, body: dict[str, Any]) -> list[str]:
        if "messages" in body:
            return ["".join(f"<{one['role']}>{one['content']}" for one in body["messages"])]
        if path == "/score":
            both = zip(body["text_1"], body["text_2"], strict=True)
            return [f"{one}</s>{other}" for one, other in both]
        return body["input"]

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.saw.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        if self.faults:
            return self.faults.pop()
        texts = self.texts_of(request.path, body)
        for text in texts:
            if len(text) > MOST and body.get("truncate_prompt_tokens") is None:
                said = f"You passed {len(text)} input tokens, but the maximum is {MOST}"
                error = {"message": said, "type": "BadRequestError", "param": None, "code": 400}
                return web.json_response({"error": error}, status=400)
        found = [logits_of(text[:MOST], self.num_classes) for text in texts]
        if body.get("use_activation") is not False:
            found = [activate(logits) for logits in found]
        data = [self.entry(request.path, number, scores) for number, scores in enumerate(found)]
        usage = {"prompt_tokens": 1, "total_tokens": 1, "completion_tokens": 0}
        reply = {"id": "classify-1", "object": "list", "created": 1, "model": "rm"}
        return web.json_response(self.change({**reply, "data": data, "usage": usage}))

    def entry(self, path: str, number: int, scores: list[float]) -> dict[str, Any]:
        if path == "/classify":
            label = f"LABEL_{scores.index(max(scores))}"
            more = {"label": label, "probs": scores, "num_classes": len(scores)}
        elif path == "/score":
            more = {"object": "score", "score": scores[0]}
        else:
            assert self.saw[-1]["task"] == "classify"
            more = {"object": "pooling", "data": scores}
        return {"index": number, **more}


@pytest.fixture
def vllm() -> Any:
    found = Imitation()
    app = web.Application(client_max_size=1 << 24)
    for path in ("/classify", "/score", "/pooling"):
        app.router.add_post(path, found.answer)
    with served(app) as url:
        found.url = url
        yield found


def row(number: int = 0) -> dict[str, Any]:
    asked = {"input": [{"role": "user", "content": f"What is {number} + 2?"}]}
    return {"responses_create_params": asked}


@asynccontextmanager
async def serving(over: Any = "local", **settings: Any) -> AsyncIterator[Any]:
    async with mount({"rm": making(Server, **settings)}, over) as peers:

        async def verify(task: dict[str, Any], answer: str) -> dict[str, Any]:
            with entered(Session()):
                await peers.call("rm", "/seed_session", task, dict)
                body = {**task, "response": text_response(answer)}
                return await peers.call("rm", "/verify", body, dict)

        yield verify


def score(
    answers: list[str], over: Any = "local", task: dict[str, Any] | None = None, **settings: Any
) -> list[dict[str, Any]]:
    async def main() -> list[dict[str, Any]]:
        async with serving(over, **settings) as verify:
            return await asyncio.gather(*(verify(task or row(), each) for each in answers))

    return asyncio.run(main())


FORMS = {
    "classify chat": ({"api": "classify"}, "<user>What is 0 + 2?<assistant>It is 2."),
    "pooling chat": ({"api": "pooling"}, "<user>What is 0 + 2?<assistant>It is 2."),
    "classify text": ({"form": "text"}, "What is 0 + 2?\n\nIt is 2."),
    "pooling text": (
        {"api": "pooling", "form": "text", "template": "{conversation} | {answer}"},
        "user: What is 0 + 2? | It is 2.",
    ),
    "score": ({"api": "score", "form": "pair"}, "What is 0 + 2?</s>It is 2."),
}


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("form", FORMS)
def test_the_reward_is_the_raw_score(vllm: Imitation, form: str, over: Any) -> None:
    settings, text = FORMS[form]
    [found] = score(["It is 2."], over, url=vllm.url, **settings)
    assert found["reward"] == pytest.approx(logits_of(text, 1)[0])
    assert found["reward_model_scores"] == [pytest.approx(found["reward"])]


def test_activations_and_classes(vllm: Imitation) -> None:
    settings: dict[str, Any] = {"url": vllm.url, "form": "text"}
    text = FORMS["classify text"][1]
    [one] = score(["It is 2."], activation="sigmoid", **settings)
    assert one["reward"] == pytest.approx(activate(logits_of(text, 1))[0])
    vllm.num_classes = 3
    [two] = score(["It is 2."], label=2, **settings)
    assert two["reward"] == pytest.approx(activate(logits_of(text, 3))[2])
    [raw] = score(["It is 2."], label=2, activation="none", **settings)
    assert raw["reward"] == pytest.approx(logits_of(text, 3)[2])
    for label in (None, 3):
        with pytest.raises(rk.VerifyError, match="3 classes: set label to the good one, from 0"):
            score(["It is 2."], label=label, **settings)
    vllm.num_classes = 1
    with pytest.raises(rk.VerifyError, match="softmax is always 1"):
        score(["It is 2."], activation="softmax", **settings)


def test_two_thousand_verdicts_in_batches_are_those_of_single_requests(vllm: Imitation) -> None:
    answers = [f"It is {number}." for number in range(2_000)]
    found = score(answers, url=vllm.url, form="text", batch_size=50)
    assert len(vllm.saw) <= 60 and max(len(body["input"]) for body in vllm.saw) == 50
    assert vllm.most_in_flight <= 4
    for answer, line in zip(answers, found, strict=True):
        assert line["reward"] == pytest.approx(logits_of(f"What is 0 + 2?\n\n{answer}", 1)[0])


def test_a_text_that_is_too_long_costs_only_its_own_verdict(vllm: Imitation) -> None:
    answers = ["short", "x" * (MOST + 1), "also short"]

    async def main() -> list[Any]:
        async with serving(url=vllm.url, form="text") as verify:
            asked = [verify(row(), each) for each in answers]
            return await asyncio.gather(*asked, return_exceptions=True)

    first, long, last = asyncio.run(main())
    assert isinstance(first, dict) and isinstance(last, dict)
    assert isinstance(long, rk.VerifyError) and not long.retryable
    assert "answered 400" in str(long) and "the maximum is 2000" in str(long)
    assert len(score(answers, url=vllm.url, form="text", truncate=True)) == 3


def test_faults_that_pass_are_retried_and_others_are_named(vllm: Imitation) -> None:
    vllm.faults = [web.Response(status=503, text="loading")]
    assert len(score(["a"], url=vllm.url)) == 1 and len(vllm.saw) == 2
    vllm.faults = [web.Response(status=404, text="no route")]
    with pytest.raises(rk.VerifyError, match="/classify answered 404: no route"):
        score(["a"], url=vllm.url)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda reply: [], "no score that can be read"),
        (lambda reply: {}, "no score that can be read"),
        (lambda reply: {"data": []}, "gave 0 scores of 1 texts"),
        (lambda reply: {"data": [{"index": 0, "probs": []}]}, "no score that can be read"),
        (lambda reply: {"data": [{"index": 0, "probs": ["high"]}]}, "no score that can be read"),
        (lambda reply: {"data": [{"index": 0}]}, "no score that can be read"),
        (lambda reply: {"data": reply["data"] * 2}, "gave 2 scores of 1 texts"),
    ],
)
def test_no_reward_comes_from_a_reply_that_cannot_be_read(
    vllm: Imitation, change: Any, why: str
) -> None:
    vllm.change = change
    with pytest.raises(rk.VerifyError, match=why):
        score(["a"], url=vllm.url)


def test_a_model_that_is_down_leaves_the_response_without_a_verdict() -> None:
    with pytest.raises(rk.VerifyError, match=r"the reward model at http://127\.0\.0\.1:9/classify"):
        score(["a"], url="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "set either url or model_path"),
        ({"url": "http://x", "model_path": "m"}, "set either url or model_path"),
        ({"url": "http://x", "api": "score"}, "api: score takes form: pair"),
        ({"url": "http://x", "form": "pair"}, "api: score takes form: pair"),
        ({"url": "http://x", "template": "{reply}"}, "it may name {question}"),
        ({"url": "vllm"}, "must start with http"),
    ],
)
def test_what_cannot_be_configured(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RewardModelConfig(**settings)


def test_the_conversation_has_its_roles() -> None:
    params = {
        "instructions": "Be brief.",
        "input": [
            {"role": "developer", "content": "In English."},
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": []},
        ],
    }
    assert read_messages(params) == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "In English."},
        {"role": "user", "content": "Hi"},
    ]


def test_a_batch_forms_while_another_is_at_work() -> None:
    async def main() -> None:
        sizes: list[int] = []
        begun, gate = asyncio.Event(), asyncio.Event()

        async def work(asked: Any) -> list[int]:
            sizes.append(len(asked))
            begun.set()
            await gate.wait()
            return [-each for each in asked]

        batcher = Batcher(work, size=3, num_in_flight=1)
        first = [asyncio.create_task(batcher.ask(each)) for each in range(2)]
        await begun.wait()
        later = [asyncio.create_task(batcher.ask(each)) for each in range(2, 8)]
        await asyncio.sleep(0)
        later[0].cancel()
        gate.set()
        found = await asyncio.gather(*first, *later, return_exceptions=True)
        assert found[:2] == [0, -1] and found[3:] == [-3, -4, -5, -6, -7]
        assert isinstance(found[2], asyncio.CancelledError)
        assert sizes == [2, 3, 2]
        begun.clear()
        gate.clear()
        held = asyncio.create_task(batcher.ask(9))
        await begun.wait()
        await batcher.stop()
        [ended] = await asyncio.gather(held, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError)

    asyncio.run(main())


def test_one_request_that_is_refused_takes_no_other_with_it() -> None:
    async def main() -> None:
        async def work(asked: Any) -> Any:
            if "bad" in asked:
                raise rk.VerifyError("bad", retryable=False)
            return asked

        batcher = Batcher(work, size=8, num_in_flight=1)
        asked = [batcher.ask(each) for each in ("a", "bad", "b")]
        one, bad, other = await asyncio.gather(*asked, return_exceptions=True)
        assert (one, other) == ("a", "b") and isinstance(bad, rk.VerifyError)

    asyncio.run(main())


def test_it_is_one_component_of_a_reward(vllm: Imitation) -> None:
    class Brief(rk.ResourcesServer):
        Config = rk.RewardModelConfig

        async def start(self) -> None:
            self.model = rk.RewardModel(self.config, self.name)
            await self.model.start()

        async def stop(self) -> None:
            await self.model.stop()

        async def verify(self, body: rk.VerifyRequest) -> rk.VerifyResponse:
            answer = rk.output_text(body.response)
            found = await self.model.score(body.responses_create_params, answer)
            return body.scored(0.5 * found.reward + 0.5 * (len(answer) < 20), model=found.reward)

    brief = Brief(Brief.Config(url=vllm.url, activation="sigmoid"))
    rows = [row(number) for number in range(20)]
    table = rk.collect_sync(rows, model=lambda params: "It is 2.", verify=brief).table()
    rewards = {each.reward for each in table}
    assert len(rewards) > 10 and all(0.5 < each < 1 for each in rewards if each is not None)
    assert json.dumps(vllm.saw[0]["messages"][-1]) == '{"role": "assistant", "content": "It is 2."}'
