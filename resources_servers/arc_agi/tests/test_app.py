import asyncio
from pathlib import Path

import orjson
import pytest

from rollout_kit import make_response, message_item
from rollout_kit.errors import TaskError
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

ArcAgi = load("resources_servers", "arc_agi")
ROWS = [
    orjson.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "example.jsonl").read_bytes().splitlines()
]
ONE, TWO = [[1, 2], [3, 4]], [[5]]
PARAMS = {"input": [{"role": "user", "content": "?"}]}


def verify(expected, text, field="expected_outputs", **settings):
    async def run():
        server = ArcAgi(ArcAgi.Config(**settings), None, "arc_agi")
        task = {"responses_create_params": PARAMS, field: expected}
        with entered(Session()):
            await server.handle("/seed_session", orjson.dumps(task))
            response = make_response("m", [message_item(text)] if text else [], None)
            body = orjson.dumps({**task, "response": response})
            return (await server.handle("/verify", body)).model_dump()

    return asyncio.run(run())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_rows(row):
    assert verify(row["expected_outputs"], row["gold_output"])["reward"] == 1
    assert verify(row["expected_outputs"], row["wrong_output"])["reward"] == 0


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("[[1,2],[3,4]]", 1),
        ("so:\n```json\n[[1, 2],\n [3, 4]]\n```\nDone [1].", 1),
        ('{"attempt_1": [[0]], "attempt_2": [[1,2],[3,4]]}', 1),
        ('[{"attempt_1": [[1,2],[3,4]]}]', 1),
        ('{"attempt_1": [[0]], "attempt_2": [[9]], "attempt_3": [[1,2],[3,4]]}', 0),
        ("[[1,2],[3,4]] no, [[1,2],[3,5]]", 0),
        ("[[1,2],[3,5]] no, [[1,2],[3,4]]", 1),
        ("[[1.0,2],[3,4]]", 0),
        ("[[true,2],[3,4]]", 0),
        ("[[1,2],[3]]", 0),
        ("[[[1,2],[3,4]]]", 1),
        ("[[[1,2],[3,4]],[[1,2],[3,4]]]", 0),
        ("[[1,2],[3,4]", 0),
        ("", 0),
        ("[" * 150_000, 0),
        ("]" * 150_000 + "[[1,2],[3,4]]", 1),
        ("[]{}" * 40_000, 0),
    ],
    ids=range(17),
)
def test_answer_of_one_input(text, reward):
    assert verify([ONE], text)["reward"] == reward


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("so \\boxed{[[1, 2],\n [3, 4]]} and [[9]]", 1),
        ("[[9]], so \\boxed{ [[1,2],[3,4]] }", 1),
        ("\\boxed{[[9]]} no, \\boxed{[[1,2],[3,4]]}", 0),
        ("[[1,2],[3,4]] no, [[9]]", 1),
        ("\\boxed{[[1,2],[3]]}", 0),
        ("\\boxed{" * 20_000, 0),
        ("", 0),
    ],
    ids=range(7),
)
def test_a_row_of_nemo_gym_asks_for_a_boxed_grid(text, reward):
    assert verify(ONE, text, field="expected_output")["reward"] == reward


@pytest.mark.parametrize(
    ("text", "reward", "solved"),
    [
        ('[{"attempt_1": [[1,2],[3,4]]}, {"attempt_1": [[0]], "attempt_2": [[5]]}]', 1, 1),
        ("[[[1,2],[3,4]], [[6]]]", 0.5, 0),
        ("[[[1,2],[3,4]]]", 0, 0),
        ("[[[5]], [[1,2],[3,4]]]", 0, 0),
    ],
)
def test_share_of_several_inputs(text, reward, solved):
    found = verify([ONE, TWO], text)
    assert (found["reward"], found["solved"]) == (reward, solved)


def test_fewer_attempts():
    text = '{"attempt_1": [[0]], "attempt_2": [[1,2],[3,4]]}'
    assert verify([ONE], text, max_attempts=1)["reward"] == 0


@pytest.mark.parametrize("expected", [[], None, [[["a"]]], [[[11]]], "x"])
def test_row_without_grids_is_refused(expected):
    with pytest.raises(TaskError, match="expected_outputs"):
        verify(expected, "[[1]]")
