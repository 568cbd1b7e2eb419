import asyncio
import json
import re

import pytest

from rollout_kit import ConfigError, ModelError, VerifyError
from rollout_kit.api.testing import OVERS, ScriptedModel, making, mount, run_virtual, text_response
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

Server = load("resources_servers", "genrm_compare")
JUDGE = {"type": "responses_api_models", "name": "judge_model"}
TASK = {"responses_create_params": {"input": [{"role": "user", "content": "Say something."}]}}


def shown(params):
    """The two replies in a question to the judge."""
    text = params["input"][-1]["content"]
    return [re.search(rf"<reply_{n}>\n(.*?)\n</reply_{n}>", text, re.DOTALL)[1] for n in (1, 2)]


def by_length(params):
    """A judge that scores a reply by its length."""
    one, two = map(len, shown(params))
    ranking = 3.5 + max(-2.5, min(2.5, two - one))
    return "Let me see {…}. " + json.dumps({"score_1": one, "score_2": two, "ranking": ranking})


def compare(texts, judge=by_length, over="local", run=asyncio.run, task=TASK, **settings):
    model = ScriptedModel(judge) if callable(judge) else judge
    members = [text if text is None else {"response": text_response(text)} for text in texts]

    async def main():
        servers = {
            "judge_model": lambda peers, name: model,
            "it": making(Server, judge_model_server=JUDGE, **settings),
        }
        async with mount(servers, over) as peers:
            with entered(session := Session()):
                body = {"task": task, "members": members}
                found = await peers.call("it", "/verify_group", body, dict)
            return found, model.calls, session

    return run(main())


def rewards(found):
    return [each and each["reward"] for each in found["members"]]


@pytest.mark.parametrize("over", OVERS)
def test_circular_compares_each_with_the_next(over):
    found, calls, _ = compare(["a", "aaaa", "aa"], over=over)
    assert sorted(map(shown, calls)) == [["a", "aaaa"], ["aa", "a"], ["aaaa", "aa"]]
    assert rewards(found) == [1.0, 4.0, 2.0]
    pairs = [(each["first"], each["second"]) for each in found["group"]["comparisons"]]
    assert pairs == [(0, 1), (1, 2), (2, 0)] and found["group"]["num_comparisons"] == 3
    assert found["members"][1]["components"] == {"score": 4.0}


def test_all_pairs():
    found, calls, _ = compare(["a", "aaaa", "aa", "aaa"], comparison_strategy="all_pairs")
    assert len(calls) == 6 and rewards(found) == [1.0, 4.0, 2.0, 3.0]


def test_the_ranking_breaks_ties():
    def tied(params):
        one, _ = shown(params)
        return json.dumps({"score_1": 4, "score_2": 4, "ranking": 2 if one == "a" else 3.5})

    found, _, _ = compare(["a", "b"], tied)
    assert rewards(found) == [4 + 1.5 / 2, 4 - 1.5 / 2]
    assert found["group"]["num_tie_breaks"] == 1
    found, _, _ = compare(["a", "b"], tied, use_tiebreak=False)
    assert rewards(found) == [4.0, 4.0] and found["group"]["num_tie_breaks"] == 0


@pytest.mark.parametrize(
    "said",
    [
        "",
        "Both are fine.",
        '{"score_1": 9, "score_2": 1, "ranking": 1}',
        '{"score_1": 2, "score_2": 1, "ranking": 7}',
        '{"score_1": 2, "score_2": 1}',
        '{"score_1": NaN, "score_2": 1, "ranking": 1}',
        '{"score_1": null, "score_2": 1, "ranking": 1}',
    ],
)
def test_an_answer_that_cannot_be_read_is_counted(said):
    found, _, _ = compare(["a", "b"], lambda params: said, default_score=2.5)
    assert rewards(found) == [2.5, 2.5] and found["group"]["num_parse_failures"] == 2
    with pytest.raises(VerifyError, match="gave no scores that can be read"):
        compare(["a", "b"], lambda params: said)


def test_the_last_object_counts():
    said = 'First {"score_1": 1, "score_2": 5, "ranking": 6}, no: {"score_1": 5, "score_2": 1,'
    found, _, _ = compare(["a", "b"], lambda params: said + ' "ranking": 1}')
    assert found["group"]["comparisons"][0]["score_1"] == 5


def test_every_second_judge_sees_the_other_order():
    def first_is_better(params):
        return '{"score_1": 5, "score_2": 3, "ranking": 1}'

    found, calls, _ = compare(["a", "b", "c"], first_is_better, num_judges_per_comparison=2)
    assert len(calls) == 6 and sorted(map(sorted, map(shown, calls))).count(["a", "b"]) == 2
    assert rewards(found) == [4.0, 4.0, 4.0], "a preference for a position cancels out"


def test_failed_members_are_left_out_and_one_alone_has_no_reward():
    found, calls, _ = compare([None, "a", None, "aaa"])
    assert rewards(found) == [None, 1.0, None, 3.0] and len(calls) == 2
    found, calls, _ = compare(["a", None])
    assert rewards(found) == [None, None] and not calls
    assert found["members"][0] is None


def test_the_judge_sees_the_conversation_and_the_principle():
    task = {"responses_create_params": {"input": "Hello?"}, "principle": "be brief"}
    _, calls, _ = compare(["{a}", "b"], task=task)
    text = calls[0]["input"][-1]["content"]
    assert "user: Hello?" in text and "Above all: be brief" in text and "{a}" in text
    assert "Above all" not in compare(["a", "b"])[1][0]["input"][-1]["content"]


@pytest.mark.parametrize("over", OVERS)
def test_without_the_judge_there_is_no_score(over):
    def broken(params):
        raise ModelError("no such model", status=404, retryable=False)

    with pytest.raises(VerifyError, match="the judge 'judge_model' gave no answer"):
        compare(["a", "b", "c"], broken, over=over)


def test_a_group_that_takes_too_long_has_no_score():
    slow = ScriptedModel(by_length, delay_s=100)
    keys = {"group_timeout_s": 250, "judge_endpoint_max_concurrency": 1}
    with pytest.raises(VerifyError, match="not judged within group_timeout_s=250"):
        compare(["a", "b", "c"], slow, run=run_virtual, **keys)
    assert slow.in_flight == 0
    found, _, _ = compare(["a", "b"], slow, run=run_virtual, **keys)
    assert found["group"]["num_comparisons"] == 2


def test_the_cost_of_the_judge_is_counted():
    *_, session = compare(["a", "b", "c"])
    assert session.spent.calls == 3 and session.spent.tokens > 0


def test_a_template_of_one_s_own(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("<reply_1>\n{response_1}\n</reply_1><reply_2>\n{response_2}\n</reply_2>")
    found, calls, _ = compare(["a", "aa"], judge_prompt_template_fpath=path)
    assert rewards(found) == [1.0, 2.0] and calls[0]["input"][-1]["content"].startswith("<reply_1>")
    path.write_text("{question}")
    with pytest.raises(ConfigError, match="it may name"):
        compare(["a", "b"], judge_prompt_template_fpath=path)
