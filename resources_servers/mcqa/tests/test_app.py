import asyncio
import json
import time
from pathlib import Path

import orjson
import pytest
from support import HANG_S

from rollout_kit import TaskError, make_response, message_item
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

Mcqa = load("resources_servers", "mcqa")
ROWS = [
    orjson.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "example.jsonl").read_bytes().splitlines()
]
OPTIONS = [{"A": "Paris"}, {"B": "New  York"}, {"C": "London"}, {"D": "York"}]


def row(**fields):
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "Which city?"}]},
        "options": OPTIONS,
        "expected_answer": "C",
        **fields,
    }


def verdict(task, text, **settings):
    settings = {"regex_timeout_s": HANG_S, **settings}

    async def run():
        server = Mcqa(Mcqa.Config(**settings), None, "mcqa")
        try:
            with entered(Session()):
                await server.handle("/seed_session", orjson.dumps(task))
                response = make_response("m", [message_item(text)] if text else [], None)
                return await server.handle("/verify", orjson.dumps({**task, "response": response}))
        finally:
            await server.stop()

    return asyncio.run(run())


def extracted(text, mode="strict_single_letter_boxed", **fields):
    return verdict(row(grading_mode=mode, **fields), text).extracted_answer


@pytest.mark.parametrize("task", ROWS, ids=[task["uuid"] for task in ROWS])
def test_the_gold_output_of_each_example_scores_full_reward_and_nothing_scores_zero(task):
    assert verdict(task, task["gold_output"]).reward == 1.0
    nothing = verdict(task, "")
    assert (nothing.reward, nothing.extracted_answer) == (0.0, None)


@pytest.mark.parametrize(
    "text, letter",
    [
        (r"\boxed{C}", "C"),
        (r"Final: \boxed{ [C] }", "C"),
        (r"\boxed{\text{C}}", "C"),
        (r"\boxed{\text{ \text{C} }}", "C"),
        (r"\boxed{C: London}", "C"),
        (r"\boxed{C) London}", "C"),
        (r"\boxed{\text{C. London}}", "C"),
        (r"first \boxed{A}, no, \boxed{C}", "C"),
        (r"\boxed{\textcolor{red}{\textbf{C}}}", "C"),
        (r"\boxed{\large C}", "C"),
        (r"\boxed{\left(\mathrm{C}\right)}", "C"),
        (r"\boxed{\text{Option C}}", "C"),
        (r"\boxed{(C) London}", "C"),
        (r"\boxed{\mbox{C}: \text{London}}", "C"),
        (r"\boxed{\vec{C}}", None),
        (r"\boxed{\angle C}", None),
        (r"\boxed{\mathbf{A} \cdot \mathbf{C}}", None),
        (r"\boxed{c}", None),
        (r"\boxed{London}", None),
        (r"\boxed{A city}", None),
        (r"\boxed{E}", None),
        (r"\boxed{A and B}", None),
        (r"\boxed{C} and then \boxed{A", None),
        ("The answer is C.", None),
        ("C", None),
    ],
)
def test_strict_mode_reads_one_letter_in_the_last_box(text, letter):
    assert extracted(text) == letter


@pytest.mark.parametrize(
    "text, letter",
    [
        (r"\boxed{C}", "C"),
        (r"\boxed{london}", "C"),
        (r"\boxed{\text{ LONDON }}", "C"),
        (r"\boxed{the city of London}", "C"),
        (r"\boxed{Paris or London}", None),
        (r"\boxed{New York}", "B"),  # although it contains the option D
        (r"\boxed{in New York}", "B"),
        (r"\boxed{Londonderry}", None),
        (r"\boxed{not London}", None),
        (r"\boxed{It isn't London}", None),
        (r"\boxed{\textbf{London}}", "C"),
        (r"\boxed{York}", "D"),
        ("London", None),
    ],
)
def test_lenient_boxed_also_takes_the_one_option_inside_the_box(text, letter):
    assert extracted(text, "lenient_boxed") == letter


@pytest.mark.parametrize(
    "text, letter",
    [
        ("Answer: C", "C"),
        ("ANSWER :  c", "C"),
        (r"answer: \text{C}", "C"),
        ("Answer: new york", "B"),
        ("Answer: London, of course", None),
        ("Answer: A\nAnswer: C", "C"),
        ("Answer: A\nAnswer: unclear", "A"),
        ("Answer: E", None),
        ("**Answer: C**", "C"),
        ("**Answer:** (C)", "C"),
        ("Answer: London.", "C"),
        (r"Answer: $\mathbf{C}$", "C"),
        ("Answer: A or C", None),
        (r"\boxed{C}", None),
    ],
)
def test_answer_colon_takes_a_letter_or_exactly_an_option(text, letter):
    assert extracted(text, "lenient_answer_colon") == letter


CASES = [
    json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=[case["answer"][-60:] for case in CASES])
def test_answers_as_models_write_them(case):
    asked = {"responses_create_params": {"input": "?"}}
    assert verdict({**asked, **case["row"]}, case["answer"]).reward == case["reward"]


@pytest.mark.parametrize(
    "pattern, text, letter",
    [
        (r"Option Selected:\s*([A-Za-z])", "Option Selected: b", "B"),
        (r"Answer:\s*([A-Za-z])", "Maybe Answer: A? No. Final Answer: B", "B"),
        (r"Choice: (.+)", "choice: LONDON", "C"),
        (r"Choice: ([A-Z])", "Choice: Z", "Z"),  # trusted, though no option has it
        ([r"Answer: (\w)", r"Antwort: (\w)"], "Antwort: B", "B"),
        (r"الإجابة:\s*([أ-د])", "الإجابة: ب", "B"),
        (r"答え:(.)", "答え:Ｄ", "D"),
        (r"(?:is|was) (A)|(?:is|was) (B)", "it was B", "B"),
        (r"Selected [A-D]\b", r"no letter alone, but \boxed{A}", "A"),
        (r"Never: (\w)", r"\boxed{C}", "C"),
    ],
)
def test_a_rows_own_pattern_comes_before_its_grading_mode(pattern, text, letter):
    assert extracted(text, template_metadata={"output_regex": pattern, "template_id": 7}) == letter


def test_a_pattern_works_without_options():
    task = row(options=None, template_metadata={"output_regex": r"Selected:\s*([A-Z])"})
    assert verdict(task, "Selected: C").reward == 1.0


def test_a_pattern_that_never_ends_is_cut_off_and_the_grading_mode_decides():
    task = row(template_metadata={"output_regex": r"(\w+\s?)+: (x+x+)+y"})
    result = verdict(task, "word " * 40 + r"\boxed{C}", regex_timeout_s=0.3)
    assert (result.reward, result.extracted_answer, result.regex_timed_out) == (1.0, "C", True)


def test_the_configured_grading_mode_wins_over_the_rows():
    assert verdict(row(), "Answer: C").reward == 0.0
    assert verdict(row(), "Answer: C", grading_mode="lenient_answer_colon").reward == 1.0


def test_the_result_is_the_row_with_the_letter_found_and_expected():
    result = verdict(row(expected_answer=" c ", uuid="u", mine=[1]), r"\boxed{A}")
    assert (result.reward, result.extracted_answer, result.expected_answer) == (0.0, "A", "C")
    assert (result.uuid, result.mine) == ("u", [1])


def test_null_options_of_columnar_data_sets_do_not_count_as_letters():
    options = [{"A": "one", "B": None}, {"A": None, "B": "two"}, {"C": None}]
    assert extracted(r"\boxed{B}", options=options) == "B"
    assert extracted(r"\boxed{C}", options=options) is None


@pytest.mark.parametrize(
    "fields, complaint",
    [
        ({"options": "A, B, C"}, "options: Input should be a valid list"),
        ({"options": ["A", "B"]}, "options.0: Input should be a valid dictionary"),
        ({"options": [{"A": 1}]}, "options.0.A: Input should be a valid string"),
        ({"expected_answer": None}, "expected_answer"),
        ({"expected_answer": ""}, "expected_answer"),
        ({"grading_mode": "lenient"}, "grading_mode"),
        ({"template_metadata": {"output_regex": "(["}}, "is not a regular expression"),
        ({"template_metadata": {"output_regex": [1]}}, "output_regex must be text"),
    ],
)
def test_a_row_that_cannot_be_graded_is_refused_when_its_session_is_seeded(fields, complaint):
    async def run():
        server = Mcqa(Mcqa.Config(), None, "mcqa")
        try:
            with entered(Session()):
                await server.handle("/seed_session", orjson.dumps(row(**fields)))
        finally:
            await server.stop()

    with pytest.raises(TaskError) as caught:
        asyncio.run(run())
    assert complaint in str(caught.value) and caught.value.terminal


def test_an_endless_response_is_read_from_its_end_and_in_no_time():
    text = r"\boxed{A} answer " + "{ \\text{" * 500_000 + r" \boxed{C}"
    started = time.monotonic()
    for mode in ("strict_single_letter_boxed", "lenient_boxed"):
        assert extracted(text, mode) == "C"
    assert extracted(text, "lenient_answer_colon") is None
    assert time.monotonic() - started < HANG_S  # going over it again for each brace takes hours


def test_a_stored_response_can_be_verified_again():
    assert Mcqa(Mcqa.Config(), None, "mcqa").describe()["reverify"] == "stateless"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: C", "C"),
        ("**Answer:** c", "C"),
        ("__Answer__: **(B)**", "B"),
        ("Answer: B because A is wrong", "B"),
        ("Answer: the right one is D.", "D"),
        ("Answer: A\nno wait\nANSWER : B", "B"),
        ("Answer: A\nAnswer: unclear", "A"),
        ("Answer: A or B", None),
        ("Answer: A, B", None),
        ("Answer: A and A", "A"),
        ("Answer: Z", None),
        ("**Answer: D/H**", None),
        ("Answer: I'd say C", "C"),
        ("Answer: I am sure that it is D, not A. So D", "D"),
        ("Answer： B", "B"),
        ("Answer: ب", "B"),
        ("The answer is C", None),
    ],
)
def test_the_markdown_mode_reads_the_last_answer_with_one_letter(text, letter):
    assert extracted(text, "lenient_answer_colon_md") == letter
