"""The interfaces of batches beside OpenAI's: Anthropic's, Azure's, and the files of vLLM."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from batches import Imitation, echo, echo_message, imitation
from support import skip_unless_installed

from rollout_kit.errors import ModelError
from rollout_kit.serving import registry
from rollout_kit.serving.batches.anthropic_batches import AnthropicBatches
from rollout_kit.serving.batches.desk import BatchDesk, BatchResult, BatchTerms
from rollout_kit.serving.batches.provider import Provider
from rollout_kit.serving.batches.run_batch import RunBatch
from rollout_kit.serving.endpoints.refusals import read_refusal
from rollout_kit.serving.transport.connection import Headers
from rollout_kit.serving.transport.http import Reply
from rollout_kit.session import BatchTicket, Session, entered
from rollout_kit.types import JsonObject

skip_unless_installed("openai", "anthropic")

Scenario = Callable[[BatchDesk], Coroutine[Any, Any, Any]]


def read(found: BatchResult) -> JsonObject:
    if found.status != 200:
        reply = Reply(found.status, Headers([]), b"")
        raise read_refusal(found.payload, "http://x", reply, "m", "the batch")
    return found.payload


async def ask(desk: BatchDesk, text: str) -> JsonObject:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
    session = Session(ticket=BatchTicket(text, waits=True))
    found = await desk.ask(session, "m", json.dumps(body).encode(), read)
    assert found is not None
    return found


async def ask_all(desk: BatchDesk, number: int) -> list[str]:
    found = await asyncio.gather(*(ask(desk, f"q{each}") for each in range(number)))
    return [each["content"][0]["text"] for each in found]


def use(folder: Path, connect: Callable[[], Provider], scenario: Scenario, **terms: Any) -> Any:
    async def main() -> Any:
        given = BatchTerms(folder, gather_s=0.02, poll_s=0.01, **terms)
        desk = BatchDesk("claude", given, connect)
        try:
            return await scenario(desk)
        finally:
            await desk.stop()

    return asyncio.run(main())


def claude(found: Imitation) -> Callable[[], Provider]:
    async def headers() -> dict[str, str]:
        return {"x-api-key": "sk-planted-0123", "anthropic-version": "2023-06-01"}

    return lambda: AnthropicBatches(found.url, headers)


def test_anthropic_answers_in_any_order_with_errors_and_expiry(tmp_path: Path) -> None:
    with imitation(echo_message) as found:
        found.errors = found.expires = 0.2
        answers = use(tmp_path, claude(found), lambda desk: ask_all(desk, 50))
    assert answers == [f"q{number}" for number in range(50)]
    assert max(found.submitted.values()) == 2 and not found.twice
    assert {each["x-api-key"] for each in found.headers} == {"sk-planted-0123"}
    assert {each["anthropic-version"] for each in found.headers} == {"2023-06-01"}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["POST /v1/messages/batches", "GET", "/results"])
def test_a_server_that_dies_finds_its_batch_at_anthropic(
    tmp_path: Path, when: str, what: str
) -> None:
    async def die(desk: BatchDesk) -> None:
        died, loop = asyncio.Event(), asyncio.get_running_loop()

        def at(now: str, request: str) -> None:
            if now == when and what in request:
                loop.call_soon_threadsafe(died.set)

        found.at = at
        asking = asyncio.create_task(ask_all(desk, 5))
        await died.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    with imitation(echo_message) as found:
        for number in (3, 5):  # of other programs
            params = {"model": "m", "messages": [{"content": "x"}]}
            names = [f"{number}-{each}" for each in range(number)]
            found.take([{"custom_id": name, "params": params} for name in names], {})
        use(tmp_path, claude(found), die)
        found.at = lambda when, what: None
        answers = use(tmp_path, claude(found), lambda desk: ask_all(desk, 5))
    assert answers == [f"q{number}" for number in range(5)]
    assert not found.twice and set(found.submitted.values()) == {1}


def test_anthropic_model_answers_in_batches_at_their_price(tmp_path: Path) -> None:
    cls = registry.load("responses_api_models", "anthropic_model")

    async def main() -> Any:
        given = {"anthropic_base_url": found.url, "anthropic_model": "m", "batch": True}
        given |= {"anthropic_api_key": "sk-planted-0123", "batch_dir": tmp_path}
        soon = {"batch_gather_s": 0.02, "batch_poll_s": 0.01}
        prices = {"prices": {"input": 1.0, "output": 2.0}}
        config = cls.Config.model_validate({**given, **soon, **prices})
        model: Any = cls(config, None, "policy_model")
        await model.start()
        try:
            session = Session(ticket=BatchTicket("t", waits=True))
            with entered(session):
                asked = {"input": [{"role": "user", "content": "q"}], "max_output_tokens": 9}
                response = await model.answer("/v1/responses", json.dumps(asked).encode())
            return response, session.spent
        finally:
            await model.stop()

    with imitation(echo_message) as found:
        response, spent = asyncio.run(main())
    assert response["output"][-1]["content"][0]["text"] == "q"
    assert spent.usd == pytest.approx(0.5 * (100 * 1.0 + 50 * 2.0) / 1e6)
    assert not found.single and found.submitted.total() == 1


def test_an_invalid_request_is_not_sent_again(tmp_path: Path) -> None:
    with imitation(echo_message) as found:

        def refuse(body: JsonObject) -> JsonObject:
            raise AssertionError

        found.answer = refuse
        found.invalid = True
        with pytest.raises(ModelError) as refused:
            use(tmp_path, claude(found), lambda desk: ask(desk, "q"))
    assert refused.value.status == 400 and not refused.value.retryable
    assert found.submitted.total() == 1


@pytest.mark.parametrize(
    ("version", "path"), [(None, "/openai/v1/batches"), ("2024-10-21", "/openai/batches")]
)
def test_azure_has_the_same_interface(tmp_path: Path, version: str | None, path: str) -> None:
    cls = registry.load("responses_api_models", "azure_openai_model")

    async def main() -> JsonObject:
        given = {"azure_endpoint": found.url.removesuffix("/v1"), "azure_deployment": "m"}
        soon = {"batch_gather_s": 0.02, "batch_poll_s": 0.01, "batch_dir": tmp_path}
        key = {"api_key": "sk-planted-0123", "api_version": version, "batch": True}
        model = cls(cls.Config.model_validate({**given, **soon, **key}), None, "policy_model")
        await model.start()
        try:
            with entered(Session(ticket=BatchTicket("t", waits=True))):
                return await model.responses({"input": [{"role": "user", "content": "q"}]})
        finally:
            await model.stop()

    with imitation(echo) as found:
        response = asyncio.run(main())
    assert response["output"][0]["content"][0]["text"] == "q"
    assert path in found.paths
    assert all(each["api-key"] == "sk-planted-0123" for each in found.headers)
    assert not any("authorization" in each for each in found.headers)


def test_vllm_s_run_batch_reads_and_writes_the_files(tmp_path: Path) -> None:
    files = tmp_path / "files"

    async def run_batch() -> None:
        """As `vllm run-batch -i … -o …` does."""
        while not (inputs := list(files.glob("*.in.jsonl"))):  # noqa: ASYNC110  a thread writes it
            await asyncio.sleep(0.01)
        [path] = inputs
        asked = [json.loads(line) for line in path.read_text().splitlines()]
        assert {each["url"] for each in asked} == {"/v1/chat/completions"}
        answers = [
            {
                "id": "vllm-1",
                "custom_id": each["custom_id"],
                "response": {"status_code": 200, "body": echo_message(each["body"])},
                "error": None,
            }
            for each in reversed(asked)
        ]
        text = "".join(f"{json.dumps(each)}\n" for each in answers)
        path.with_name(path.name.replace(".in.", ".out.")).write_text(text)

    async def scenario(desk: BatchDesk) -> list[str]:
        answers, _ = await asyncio.gather(ask_all(desk, 5), run_batch())
        return answers

    def connect() -> Provider:
        return RunBatch(files, "/v1/chat/completions", "Qwen/Qwen3-8B")

    answers = use(tmp_path / "batches", connect, scenario)
    assert answers == [f"q{number}" for number in range(5)]
    again = use(tmp_path / "batches", connect, lambda desk: ask_all(desk, 5))
    assert again == answers and len(list(files.glob("*.in.jsonl"))) == 1


def test_batches_as_files_cost_the_usual_price(tmp_path: Path) -> None:
    cls = registry.load("responses_api_models", "openai_model")
    given = {"openai_base_url": "http://unused", "openai_model": "m", "batch": True}
    prices = {"prices": {"input": 1.0, "output": 2.0}}
    config = cls.Config.model_validate({**given, **prices, "batch_files": tmp_path})
    tariff = cls(config, None, "policy_model").describe()["prices"]
    assert tariff["batch"] == tariff["standard"]
