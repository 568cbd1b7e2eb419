import asyncio
from typing import Any

import pytest

from rollout_kit import TaskError, VerifyError, make_response, message_item
from rollout_kit.api.testing import ScriptedModel, making, mount
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

Server = load("resources_servers", "graded_answers")

SHORT = {"question": "What is 2 + 2?", "expected_answer": "4"}
TALK = {"rubric": [{"criterion": "Is kind.", "points": 5}, {"criterion": "Is rude.", "points": -8}]}
ARENA = {"question": "Hello", "baseline_answer": "# Hi\n\n- **you**", "category": "hard_prompt"}


def verify(kind: str, row: dict[str, Any], answer: str, *replies: str) -> tuple[Any, list[Any]]:
    """The verdict, and what the judge was asked. The last reply is repeated."""
    asked: list[Any] = []

    def reply(params: dict[str, Any]) -> str:
        asked.append(params["input"])
        return replies[min(len(asked), len(replies)) - 1]

    async def main() -> Any:
        judge = ScriptedModel(reply)
        servers = {"judge": lambda peers, name: judge, "it": making(Server, kind=kind)}
        said = [{"role": "user", "content": "Hello"}]
        task = {"responses_create_params": {"input": said}, **row}
        async with mount(servers) as peers:
            with entered(Session()):
                await peers.call("it", "/seed_session", task, dict)
                response = make_response("m", [message_item(answer)] if answer else [], None)
                return await peers.call("it", "/verify", {**task, "response": response}, dict)

    return asyncio.run(main()), asked


@pytest.mark.parametrize(
    ("reply", "reward", "field"),
    [
        ("A", 1.0, "is_correct"),
        ("Grade: B.", 0.0, "is_incorrect"),
        ("No Answer: C", 0.0, "not_attempted"),
    ],
)
def test_short_answers(reply: str, reward: float, field: str) -> None:
    found, asked = verify("simple_qa", SHORT, "It is 4.", reply)
    assert (found["reward"], found[field], found["judge_replies"]) == (reward, 1.0, [reply])
    assert "Gold target: 4\nPredicted answer: It is 4.\n" in asked[0][0]["content"]


@pytest.mark.parametrize(
    ("answer", "confidence"),
    [("4", 1.0), ("Confidence: 30%\nconfidence: 45%", 0.45), ("Confidence: 9999999", 1.0)],
)
def test_an_exam_with_confidence(answer: str, confidence: float) -> None:
    found, _ = verify("hle", SHORT, answer, "They match.\ngrade: c")
    assert (found["reward"], found["confidence"]) == (1.0, confidence)
    found, _ = verify("hle", SHORT, answer, "GRADE: C? No: GRADE: I")
    assert found["reward"] == 0.0


def test_points_of_a_rubric() -> None:
    yes, no = '```json\n{"criteria_met": true}\n```', '{"criteria_met": false}'
    found, asked = verify("health_bench", TALK, "Hi", yes, no)
    assert (found["reward"], found["criteria_met"]) == (1.0, 0.5)
    assert asked[0][0]["role"] == "system"
    assert "user: Hello\n\nassistant: Hi\n" in asked[0][1]["content"]
    assert "[5] Is kind." in asked[0][1]["content"] and "[-8] Is rude." in asked[1][1]["content"]
    assert verify("health_bench", TALK, "Hi", yes)[0]["reward"] == pytest.approx(-0.6)
    found, asked = verify("health_bench", TALK, "", yes)
    assert (found["reward"], asked) == (0.0, [])


def test_a_comparison_in_both_orders() -> None:
    found, asked = verify("arena_hard", ARENA, "Hi there you", "[[A>>B]]", "Tie: [[A=B]]")
    assert (found["reward"], found["verdicts"]) == (1.0, ["A>>B", "A=B"])
    assert found["battles"] == [{"score": 1.0, "weight": 3.0}, {"score": 0.5, "weight": 1.0}]
    first, second = (each[1]["content"] for each in asked)
    assert first.index("Hi there") < first.index("# Hi")
    assert second.index("# Hi") < second.index("Hi there")
    assert found["style_length"] == pytest.approx(-1 / 7)
    assert all(-1 < found[f"style_{name}"] < 0 for name in ("headers", "lists", "bold"))


@pytest.mark.parametrize(
    ("kind", "row", "reply"),
    [
        ("simple_qa", SHORT, "I cannot tell."),
        ("hle", SHORT, "GRADE: 7"),
        ("health_bench", TALK, '{"criteria_met": "yes"}'),
        ("health_bench", TALK, "[" * 100_000),
        ("arena_hard", ARENA, "[[A>B]] or [[B>A]]"),
    ],
)
def test_without_a_readable_reply_there_is_no_verdict(kind: str, row: Any, reply: str) -> None:
    with pytest.raises(VerifyError, match="the judge 'judge' gave no verdict that can be read"):
        verify(kind, row, "Hi", reply)
    if kind == "simple_qa":
        found, asked = verify(kind, row, "Hi", reply, "B")
        assert (found["is_incorrect"], len(asked)) == (1.0, 2)


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        ("hle", {"question": "?"}, "expected_answer is missing: the kind hle needs it"),
        ("health_bench", SHORT, "rubric is missing"),
        ("health_bench", {"rubric": TALK["rubric"][1:]}, "no criterion has positive points"),
        ("arena_hard", {**ARENA, "category": "x"}, "category: there is no prompt for 'x'"),
    ],
)
def test_a_row_of_another_kind(kind: str, row: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        verify(kind, row, "Hi", "A")


def test_texts_of_white_space_are_read_at_once() -> None:
    gaps = "\n" * 90_000
    found, _ = verify("arena_hard", ARENA, f"- one{gaps}  1. two{gaps}* three", "[[A=B]]")
    assert found["style_lists"] == pytest.approx((3 / 7 - 1 / 5) / (3 / 7 + 1 / 5 + 1))
    with pytest.raises(VerifyError):
        verify("hle", SHORT, "4", "grade" * 100_000)
    with pytest.raises(VerifyError):
        verify("health_bench", TALK, "Hi", f"a{gaps}b")
