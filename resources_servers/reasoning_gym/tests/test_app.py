import asyncio
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest
from support import HANG_S, skip_unless_installed

from rollout_kit import TaskError, make_response, message_item
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

skip_unless_installed("reasoning_gym")

FOLDER = Path(__file__).parents[1]
ReasoningGym = load("resources_servers", "reasoning_gym")
ROWS = [orjson.loads(line) for line in (FOLDER / "data/example.jsonl").read_bytes().splitlines()]
SUM = ROWS[0]
FAMILIES = [
    "arc_agi",
    "base_conversion",
    "basic_arithmetic",
    "binary_alternation",
    "caesar_cipher",
    "chain_sum",
    "countdown",
    "fraction_simplification",
    "gcd",
    "largest_island",
    "lcm",
    "letter_counting",
    "mini_sudoku",
    "n_queens",
    "number_sorting",
    "prime_factorization",
    "rearc",
    "sokoban",
    "spell_backward",
    "tower_of_hanoi",
    "word_ladder",
]
PARSED = ["binary_matrix", "intermediate_integration", "puzzle24"]
PARSED += ["polynomial_multiplication", "spiral_matrix", "string_insertion"]
"""More families whose scorers parse what they are given."""


def verdicts(pairs, **settings):
    settings = {"verify_timeout_s": HANG_S, "num_verify_workers": 1, **settings}

    async def run():
        server = ReasoningGym(ReasoningGym.Config(**settings), None, "reasoning_gym")
        await server.start()
        try:
            found = []
            for task, text in pairs:
                with entered(Session()):
                    await server.handle("/seed_session", orjson.dumps(task))
                    response = make_response("m", [message_item(text)] if text else [], None)
                    body = orjson.dumps({**task, "response": response})
                    found.append(await server.handle("/verify", body))
            return found
        finally:
            await server.stop()

    return asyncio.run(run())


def generated(*words):
    command = [sys.executable, FOLDER / "generate.py", *words]
    return subprocess.run(command, capture_output=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def lines():
    """Two rows of each family."""
    return generated(*PARSED, *FAMILIES, "--size", "2", "--seed", "3")


def test_answers_right_wrong_malformed_and_adversarial():
    right = SUM["answer"]
    table = [
        (f"<answer>{right}</answer>", 1.0),
        (f"<answer>7</answer> no, wait: <answer> {right}\n</answer>", 1.0),
        (f"so it is \\boxed{{{right}}}", 1.0),
        (right, 1.0),
        (f"<answer>{right}</answer><answer>7</answer>", 0.0),
        (f"<answer>{right}", 0.0),
        ("\\boxed{" * 50, 0.0),
        ("", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer>None</answer>", 0.0),
        ("<answer>" + "9" * 5000 + "</answer>", 0.0),
    ]
    found = verdicts([(SUM, text) for text, _ in table])
    # a scorer may give a little for an answer that holds the right one among other things
    assert [verdict.reward if verdict.reward == 1.0 else 0.0 for verdict in found] == [
        reward for _, reward in table
    ]
    assert found[0].task_name == SUM["metadata"]["source_dataset"]


def test_families_generate_and_their_own_answers_score_one_after_a_trip_through_json(lines):
    assert lines[-4:] == generated(*FAMILIES[-2:], "--size", "2", "--seed", "3")
    rows = [orjson.loads(line) for line in lines[2 * len(PARSED) :]]
    assert len(rows) == 2 * len(FAMILIES)
    found = verdicts([(row, f"<answer>{row['answer']}</answer>") for row in rows])
    assert [(verdict.task_name, verdict.reward) for verdict in found] == [
        (family, 1.0) for family in FAMILIES for _ in range(2)
    ]


def test_a_family_that_is_unknown_is_refused_before_the_policy_is_asked():
    row = {**SUM, "metadata": {"source_dataset": "no_such_family"}}
    with pytest.raises(TaskError, match="no family 'no_such_family'"):
        verdicts([(row, "1")])


@pytest.mark.parametrize("text", ["<answer>" * 12_500, "\\boxed{" * 14_000, "{}" * 50_000])
def test_a_long_answer_that_means_harm_takes_no_time(text):
    began = time.monotonic()
    sys.modules[ReasoningGym.__module__].extract(text * 20)
    assert time.monotonic() - began < HANG_S  # going over it again for each brace takes hours


def test_no_family_executes_an_answer(lines):
    families = {*PARSED, "countdown", "n_queens"}
    answers = [
        "__import__('os')._exit(1)",
        "\uff3f\uff3fimport\uff3f\uff3f('os')._exit(1)",
        "exec(chr(105) + chr(109))",
        "exit()",
        "open(0)",
    ]
    rows = [orjson.loads(line) for line in lines[::2]]
    rows = [row for row in rows if row["metadata"]["source_dataset"] in families]
    assert len(rows) == len(families)
    pairs = [(row, f"<answer>{answer}</answer>") for answer in answers for row in rows]
    found = zip(pairs, verdicts(pairs), strict=True)
    assert [pair for pair, verdict in found if verdict.reward >= 0.1] == []
