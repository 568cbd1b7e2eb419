"""The first rollout of a task asks alone; its repeats follow once the prompt is cached."""

import asyncio
from typing import Any

import orjson
import pytest
from hosted import CHAT

from rollout_kit.api.testing import making
from rollout_kit.errors import ModelError
from rollout_kit.serving import registry
from rollout_kit.serving.endpoints.patience import FirstOfTask
from rollout_kit.serving.transport.connection import Headers
from rollout_kit.serving.transport.http import Reply
from rollout_kit.serving.transport.peers import Peers
from rollout_kit.session import Session, entered


class Told:
    """Answers when told to; `asked` has the bodies so far."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answers: list[asyncio.Future[int]] = []

    async def post(self, url: str, raw: bytes, **options: Any) -> Reply:
        self.asked.append(orjson.loads(raw))
        self.answers.append(told := asyncio.get_running_loop().create_future())
        return Reply(await told, Headers([]), orjson.dumps(CHAT))

    async def close(self) -> None:
        pass


def model_at(line: Told, **keys: Any) -> Any:
    server: Any = registry.load("responses_api_models", "openai_model")
    given = {"openai_base_url": "https://x/v1", "openai_api_key": "none", "openai_model": "m"}
    given |= {"upstream_api": "chat_completions", "max_tries": 1}
    model = making(server, **given, **keys)(Peers({}), "m")
    model._http = line
    return model


async def ask(model: Any, task: str, index: int) -> Any:
    with entered(Session.of((task, index), None)):
        return await model.responses({"input": "Hi"})


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_repeats_wait_for_the_first_answer_and_other_tasks_do_not() -> None:
    async def main() -> None:
        line = Told()
        model = model_at(line, lead_repeats=True)
        tasks = [asyncio.create_task(ask(model, "a", each)) for each in range(8)]
        tasks.append(asyncio.create_task(ask(model, "b", 0)))
        await settle()
        assert [each["prompt_cache_key"] for each in line.asked] == ["a", "b"]
        line.answers[0].set_result(200)
        await settle()
        assert [each["prompt_cache_key"] for each in line.asked] == ["a", "b", *"aaaaaaa"]
        for answer in line.answers[1:]:
            answer.set_result(200)
        await asyncio.gather(*tasks)
        last = asyncio.create_task(ask(model, "a", 9))
        await settle()
        line.answers[-1].set_result(200)
        await last

    asyncio.run(main())


def test_if_the_leader_fails_another_one_leads() -> None:
    async def main() -> None:
        line = Told()
        model = model_at(line, lead_repeats=True)
        tasks = [asyncio.create_task(ask(model, "a", each)) for each in range(4)]
        await settle()
        line.answers[0].set_result(400)
        with pytest.raises(ModelError):
            await tasks[0]
        await settle()
        assert len(line.asked) == 2
        tasks[1].cancel()
        await settle()
        assert len(line.asked) == 3, "a cancelled leader is replaced, too"
        line.answers[2].set_result(200)
        await settle()
        line.answers[3].set_result(200)
        await asyncio.gather(*tasks[2:])

    asyncio.run(main())


def test_without_the_key_all_ask_at_once() -> None:
    async def main() -> None:
        line = Told()
        model = model_at(line)
        tasks = [asyncio.create_task(ask(model, "a", each)) for each in range(4)]
        await settle()
        assert len(line.asked) == 4
        assert "prompt_cache_key" not in line.asked[0]
        for answer in line.answers:
            answer.set_result(200)
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_the_first_piece_of_an_answer_is_enough() -> None:
    async def main() -> None:
        leading, order = FirstOfTask(), []

        async def follow() -> None:
            async with leading.following("a"):
                order.append("follower")

        async with leading.following("a"):
            following = asyncio.create_task(follow())
            await settle()
            assert not order
            leading.begin("a")
            await following
            order.append("leader")
        assert order == ["follower", "leader"]

    asyncio.run(main())
