"""Requests gather into batches, and each gets its answer once, whatever happens meanwhile."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from batches import Imitation, echo, imitation
from support import skip_unless_installed

from rollout_kit.errors import BatchPending, ConfigError, ModelError
from rollout_kit.serving import registry
from rollout_kit.serving.batches import desk as desks
from rollout_kit.serving.hosted_model import HostedModel
from rollout_kit.session import BatchTicket, Session, entered
from rollout_kit.types import JsonObject

skip_unless_installed("openai")

PRICES = {"input": 1.0, "output": 2.0}
SOON = {"batch_gather_s": 0.02, "batch_poll_s": 0.01, "prices": PRICES}


def model_at(url: str, folder: Path, **settings: Any) -> HostedModel:
    cls = registry.load("responses_api_models", "openai_model")
    given = {"openai_base_url": url, "openai_model": "m", "openai_api_key": "sk-planted-0123"}
    place = {"batch": True, "batch_dir": folder / "batches"}
    config = cls.Config.model_validate({**given, **place, **SOON, **settings})
    return cls(config, None, "policy_model")


def use(
    found: Imitation,
    folder: Path,
    scenario: Callable[[HostedModel], Coroutine[Any, Any, Any]],
    **settings: Any,
) -> Any:
    """Run `scenario` with a started server of this folder, which ends like one that is killed: it
    says nothing to the provider."""

    async def main() -> Any:
        model = model_at(found.url, folder, **settings)
        await model.start()
        try:
            return await scenario(model)
        finally:
            await model.stop()

    return asyncio.run(main())


async def ask(model: HostedModel, text: str, ticket: str = "t", *, waits: bool = True) -> Any:
    with entered(Session(ticket=BatchTicket(ticket, waits))) as session:
        response = await model.responses({"input": [{"role": "user", "content": text}]})
        model.bill(response, session.spent)
        return response, session.spent


def text_of(answer: tuple[JsonObject, Any]) -> str:
    return answer[0]["output"][-1]["content"][0]["text"]


def test_requests_gather_into_one_batch_at_half_the_price(tmp_path: Path) -> None:
    async def scenario(model: HostedModel) -> list[Any]:
        return await asyncio.gather(*(ask(model, f"q{n}", f"t{n}") for n in range(20)))

    with imitation() as found:
        answers = use(found, tmp_path, scenario)
    assert [text_of(each) for each in answers] == [f"q{n}" for n in range(20)]
    [batch] = found.batches.values()
    assert len(batch.lines) == 20 and not found.single
    response, spent = answers[0]
    assert response["service_tier"] == "batch"
    assert spent.usd == pytest.approx(0.5 * (100 * 1.0 + 50 * 2.0) / 1e6)
    assert all(each["authorization"] == "Bearer sk-planted-0123" for each in found.headers)


def test_a_ticket_that_does_not_wait_is_told_to_come_again(tmp_path: Path) -> None:
    async def scenario(model: HostedModel) -> Any:
        with pytest.raises(BatchPending) as pending:
            await ask(model, "q", waits=False)
        assert pending.value.server == "" and not pending.value.retryable
        id = pending.value.batch
        before = model.desk.find_settled([id])
        answer = await ask(model, "q")
        return before, model.desk.find_settled([id]), id, answer

    with imitation() as found:
        before, after, id, answer = use(found, tmp_path, scenario)
    assert before == [] and after == [id] and text_of(answer) == "q"
    assert found.submitted.total() == 1


def test_requests_without_a_ticket_are_sent_at_once(tmp_path: Path) -> None:
    async def scenario(model: HostedModel) -> Any:
        return await model.responses({"input": [{"role": "user", "content": "q"}]})

    with imitation() as found:
        use(found, tmp_path, scenario)
    assert len(found.single) == 1 and not found.batches


def test_equal_requests_are_known_by_rollout_and_number(tmp_path: Path) -> None:
    async def twice(model: HostedModel) -> None:
        """A rollout that asks the same twice, in each of its attempts."""
        session = Session(ticket=BatchTicket("t1", waits=True))
        with entered(session):
            for _ in range(2):
                await model.responses({"input": [{"role": "user", "content": "q"}]})

    async def scenario(model: HostedModel) -> None:
        await asyncio.gather(twice(model), ask(model, "q", "t2"))
        await twice(model)

    with imitation() as found:
        use(found, tmp_path, scenario)
    assert found.submitted.total() == len(found.submitted) == 3


def test_another_server_has_the_answers_of_the_first(tmp_path: Path) -> None:
    with imitation() as found:
        use(found, tmp_path, lambda model: ask(model, "q"))
        requests = len(found.headers)
        assert text_of(use(found, tmp_path, lambda model: ask(model, "q"))) == "q"
    assert len(found.headers) == requests, "nothing had to be asked again"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "what", ["POST /v1/files", "POST /v1/batches", "GET /v1/batches/batch_0", "content"]
)
def test_a_server_that_dies_submits_no_request_twice(tmp_path: Path, when: str, what: str) -> None:
    """Its request has arrived, or was handled too, when it dies."""

    async def scenario(model: HostedModel) -> Any:
        died, loop = asyncio.Event(), asyncio.get_running_loop()

        def die(at: str, request: str) -> None:
            if at == when and what in request:
                loop.call_soon_threadsafe(died.set)

        found.at = die
        asking = asyncio.gather(*(ask(model, f"q{n}", f"t{n}") for n in range(5)))
        await died.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def again(model: HostedModel) -> list[Any]:
        return await asyncio.gather(*(ask(model, f"q{n}", f"t{n}") for n in range(5)))

    with imitation() as found:
        use(found, tmp_path, scenario)
        found.at = lambda when, what: None
        answers = use(found, tmp_path, again)
    assert [text_of(each) for each in answers] == [f"q{n}" for n in range(5)]
    assert not found.twice and set(found.submitted.values()) == {1}


def test_what_was_not_submitted_is_forgotten_with_the_server(tmp_path: Path) -> None:
    async def scenario(model: HostedModel) -> None:
        with pytest.raises(BatchPending):
            await ask(model, "q", waits=False)

    with imitation() as found:
        use(found, tmp_path, scenario, batch_gather_s=60.0)
        assert not list((tmp_path / "batches").glob("*.results.jsonl"))
        use(found, tmp_path, lambda model: ask(model, "another"))
        assert len(list((tmp_path / "batches").glob("*.jsonl"))) == 2  # journal and results
    assert found.submitted.total() == 1


def test_failed_and_expired_requests_go_into_another_batch(tmp_path: Path) -> None:
    async def scenario(model: HostedModel) -> list[Any]:
        return await asyncio.gather(*(ask(model, f"q{n}", f"t{n}") for n in range(60)))

    with imitation() as found:
        found.errors = found.expires = 0.2
        answers = use(found, tmp_path, scenario)
    assert [text_of(each) for each in answers] == [f"q{n}" for n in range(60)]
    assert max(found.submitted.values()) == 2 and not found.twice and not found.single


def test_what_has_expired_is_sent_without_a_batch_if_that_is_allowed(tmp_path: Path) -> None:
    with imitation() as found:
        found.expires = 1.0
        response, spent = use(found, tmp_path, lambda model: ask(model, "q"), batch_fallback=True)
    assert len(found.single) == 1 and found.submitted.total() == 1
    assert response.get("service_tier") != "batch"
    assert spent.usd == pytest.approx((100 * 1.0 + 50 * 2.0) / 1e6)


def test_a_request_that_always_fails_ends_after_max_tries(tmp_path: Path) -> None:
    def fail(body: JsonObject) -> JsonObject:
        return {"error": {"message": "overloaded", "code": "server_error"}}

    with imitation(fail) as found, pytest.raises(ModelError, match="overloaded"):
        use(found, tmp_path, lambda model: ask(model, "q"), max_tries=3)
    assert found.submitted.total() == 3


def test_a_batch_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with imitation() as found:
        found.is_held = True
        settings = {"batch_max_wait_s": 0.05, "batch_fallback": True}
        answer = use(found, tmp_path, lambda model: ask(model, "q"), **settings)
    [batch] = found.batches.values()
    assert batch.status == "cancelled" and text_of(answer) == "q"


def test_a_refused_batch_fails_its_requests_with_the_provider_s_reason(tmp_path: Path) -> None:
    with imitation() as found:
        found.refuse_batch = {"code": "model_not_found", "message": "no batches for this model"}
        with pytest.raises(ModelError, match="no batches for this model"):
            use(found, tmp_path, lambda model: ask(model, "q"))
        assert text_of(use(found, tmp_path, lambda model: ask(model, "q"))) == "q"


def test_a_batch_beyond_the_quota_is_submitted_later(tmp_path: Path) -> None:
    with imitation() as found:
        found.refuse_batch = {"code": "token_limit_exceeded", "message": "Enqueued token limit"}
        assert text_of(use(found, tmp_path, lambda model: ask(model, "q"))) == "q"
    assert len(found.batches) == 2


def test_batches_have_at_most_batch_size_requests(tmp_path: Path) -> None:
    async def scenario(model: HostedModel) -> list[Any]:
        return await asyncio.gather(*(ask(model, f"q{n}", f"t{n}") for n in range(25)))

    with imitation() as found:
        use(found, tmp_path, scenario, batch_size=10)
    assert sorted(len(batch.lines) for batch in found.batches.values()) == [5, 10, 10]


def test_each_model_has_batches_of_its_own(tmp_path: Path) -> None:
    async def one(model: HostedModel, name: str) -> Any:
        with entered(Session(ticket=BatchTicket(name, waits=True))):
            asked = {"model": name, "input": [{"role": "user", "content": "q"}]}
            return await model.responses(asked)

    async def scenario(model: HostedModel) -> Any:
        return await asyncio.gather(one(model, "a"), one(model, "b"))

    with imitation() as found:
        use(found, tmp_path, scenario)
    assert len(found.batches) == 2


def test_a_second_server_cannot_have_the_same_folder(tmp_path: Path) -> None:
    async def scenario(model: HostedModel) -> None:
        await ask(model, "q")
        other = model_at(found.url, tmp_path)
        await other.start()
        with pytest.raises(ModelError, match="in use"):
            await ask(other, "q")
        await other.stop()

    with imitation() as found:
        use(found, tmp_path, scenario)


def test_cancelling_ends_the_batches_and_keeps_their_answers(tmp_path: Path) -> None:
    async def scenario(model: HostedModel) -> None:
        for number in range(40):
            with pytest.raises(BatchPending):
                await ask(model, f"q{number}", f"t{number}", waits=False)
        while not found.batches:  # noqa: ASYNC110  another thread fills it
            await asyncio.sleep(0.01)
        while model.desk.figures()["batches"] == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await model.desk.cancel() == 1

    async def again(model: HostedModel) -> list[Any]:
        asks = (ask(model, f"q{number}", f"t{number}") for number in range(40))
        return await asyncio.gather(*asks)

    with imitation() as found:
        found.is_held = True
        use(found, tmp_path, scenario)
        found.is_held = False
        answers = use(found, tmp_path, again, batch_fallback=True)
    assert len(answers) == 40 and not found.twice and not found.single


@pytest.mark.parametrize("given", [{"stream": True}, {"service_tier": "flex"}])
def test_keys_that_mean_nothing_in_a_batch_are_refused(tmp_path: Path, given: JsonObject) -> None:
    with pytest.raises(ValueError, match="means nothing in a batch"):
        model_at("http://127.0.0.1:1/v1", tmp_path, **given)


def test_a_torn_journal_is_read_up_to_there(tmp_path: Path) -> None:
    with imitation() as found:
        use(found, tmp_path, lambda model: ask(model, "q"))
        with (tmp_path / "batches/journal.jsonl").open("ab") as stream:
            stream.write(b'{"batch":"torn","eve')
        use(found, tmp_path, lambda model: ask(model, "q"))
        use(found, tmp_path, lambda model: ask(model, "other"))
        assert text_of(use(found, tmp_path, lambda model: ask(model, "q"))) == "q"
    assert found.submitted.total() == 2


def test_a_server_without_batches_says_so(tmp_path: Path) -> None:
    config = HostedModel.Config(batch=True)
    model = HostedModel.__new__(HostedModel)
    model.name = "mine"
    assert config.batch
    with pytest.raises(ConfigError, match="no batches are known"):
        model.connect_batches()


def test_numbers_of_equal_requests_are_forgotten_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desks, "MAX_DELIVERED", 2)

    async def scenario(model: HostedModel) -> int:
        for number in range(4):
            await ask(model, f"q{number}")
        return len(model.desk._delivered)

    with imitation(echo) as found:
        assert use(found, tmp_path, scenario) == 2
