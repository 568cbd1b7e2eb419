import asyncio
from pathlib import Path

import orjson
import pytest
from support import HANG_S, limit_only

from rollout_kit import TaskError, make_response, message_item
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

StringMatch = load("resources_servers", "string_match")
ROWS = [
    orjson.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "example.jsonl").read_bytes().splitlines()
]


def row(expected="Yes", **fields):
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "Is it?"}]},
        "expected_answer": expected,
        **fields,
    }


def verdicts(pairs, **settings):
    settings = {"regex_timeout_s": HANG_S, **settings}

    async def run():
        server = StringMatch(StringMatch.Config(**settings), None, "string_match")
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


def verdict(task, text, **settings):
    [found] = verdicts([(task, text)], **settings)
    return found


@pytest.mark.parametrize(
    ("mode", "text", "answer"),
    [
        ("final_answer", "Answer: yes", "yes"),
        ("final_answer", "Answer: no\nwait\nFINAL  answer ： Yes. .", "Yes"),
        ("final_answer", "Answer:\n 42 ", "42"),
        ("final_answer", "**Answer:** 42", "** 42"),
        ("final_answer", r"no words, but \boxed{4}", "4"),
        ("final_answer", "Yes", None),
        ("final_answer", "Answer: .", ""),
        ("boxed", r"\boxed{a} and \boxed{b}", "b"),
        ("boxed", r"\boxed{ \text{ \text{a} } }", "a"),
        ("boxed", r"\boxed{\frac{1}{2}} \boxed{3", r"\frac{1}{2}"),
        ("boxed", r"\boxed{a \boxed{b} c}", "b"),
        ("boxed", "} } Answer: a", None),
        ("last_line", "a\n\n b \n \n", "b"),
        ("last_line", " \n ", None),
        ("full_response", " a\nb ", "a\nb"),
        ("full_response", "", None),
    ],
)
def test_the_answer_is_read_as_the_row_says(mode, text, answer):
    assert verdict(row(extraction_mode=mode), text).extracted_answer == answer


GRADES = [
    ("Yes", "yes", 1),
    ("Yes", '"Yes!"', 1),
    ("Yes", '"Yes"!', 0),
    ("Yes", "yes, it is", 0),
    ("Yes", "No", 0),
    ("１２", "12", 1),
    ("12", "12.0", 1),
    ("12", r"\$12", 1),
    ("one", r"one\$", 0),
    ("1234", "1,234", 1),
    ("1234567", "1,234,567", 0.98),
    ("50%", r"50\%", 1),
    ("x + 1", r"\(\text{x} + \mathrm{1}\)", 1),
    ("x", r"\text{\text{x}", 1),
    ("red, green", "red; green", 1),
    ("red and green things", "red  , green things", 1),
    ("Texas", "TX", 1),
    ("West Virginia", "WV", 1),
    ("Arkansas", "KS", 0),
    ("90", "90°", 0.98),
    ("5 km", "5", 0.98),
    ("x km", "x", 1),
    ("100", "100.5", 0.98),
    ("100", "98", 0),
    ("0", "0.1", 0),
    ("inf", "nan", 0),
    ("3²", "3^2", 0),  # NFKC has made it 32 before, as in NeMo Gym
]


def test_answers_are_normalised_as_in_nemo_gym():
    pairs = [(row(expected, extraction_mode="full_response"), said) for expected, said, _ in GRADES]
    found = [verdict.reward for verdict in verdicts(pairs, near_number_reward=0.98)]
    wrong = [entry for entry, reward in zip(GRADES, found, strict=True) if entry[2] != reward]
    assert wrong == []


NUMBERS = [
    ("149", "148", 0),
    ("100", "100.5", 0),
    ("1234567", "1,234,567", 1),
    ("90", "90°", 1),
    ("5 km", "5", 1),
    ("3.0", "3", 1),
    ("0.5", "0.50000001", 0),
]


def test_a_number_is_right_or_wrong_unless_the_configuration_says_otherwise():
    pairs = [
        (row(expected, extraction_mode="full_response"), said) for expected, said, _ in NUMBERS
    ]
    found = [verdict.reward for verdict in verdicts(pairs)]
    assert found == [reward for *_, reward in NUMBERS]


@pytest.mark.parametrize(
    ("fields", "text", "reward"),
    [
        ({"match_mode": "exact"}, "yes ", 1),
        ({"match_mode": "exact"}, "Yes.", 0),
        ({"match_mode": "exact", "case_sensitive": True}, "yes", 0),
        ({"case_sensitive": True}, " Yes", 1),
        ({"case_sensitive": True}, "Yes.", 0),
        ({"match_mode": "contains"}, "Oh YES, it is", 1),
        ({"match_mode": "contains", "case_sensitive": True}, "Oh YES, it is", 0),
        ({"match_mode": "contains", "expected_answer": "a b"}, "A\n b", 1),
        ({"expected_answer": ["No", "Yes"]}, "yes", 1),
        ({"expected_answer": ["99", "100"]}, "100", 1),
        ({"expected_answer": ["No", "Never"]}, "yes", 0),
        ({"match_mode": "regex", "expected_answer": "^y(es|ep)$"}, "Yep", 1),
        ({"match_mode": "regex", "expected_answer": "^y(es|ep)$"}, "Yep!", 0),
        ({"match_mode": "regex", "expected_answer": ["no", "e"], "case_sensitive": True}, "Yes", 1),
        ({"match_mode": "regex", "expected_answer": "YES", "case_sensitive": True}, "Yes", 0),
    ],
)
def test_each_way_to_match(fields, text, reward):
    assert verdict(row(**{"extraction_mode": "full_response", **fields}), text).reward == reward


def test_gold_outputs_score_full_reward_and_wrong_ones_and_none_nothing():
    kinds = ("gold_output", "wrong_output", "nothing")
    found = verdicts([(task, task.get(kind, "")) for task in ROWS for kind in kinds])
    assert [verdict.reward for verdict in found] == [1.0, 0.0, 0.0] * len(ROWS)


def test_the_result_is_the_row_with_what_was_extracted():
    found = verdict(row(metadata={"a": 1}), "Answer: No")
    assert (found.expected_answer, found.extracted_answer, found.metadata) == (
        "Yes",
        "No",
        {"a": 1},
    )


def test_a_pattern_that_never_ends_is_cut_off_and_the_next_answer_is_matched(monkeypatch):
    limit_only("a" * 50, monkeypatch)
    task = row(r"^(a+)+$", match_mode="regex", extraction_mode="full_response")
    found = verdicts([(task, "a" * 50 + "!"), (task, "aa")], regex_timeout_s=0.3)
    assert [(each.reward, getattr(each, "regex_timed_out", False)) for each in found] == [
        (0.0, True),
        (1.0, False),
    ]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"expected_answer": ""}, "expected_answer"),
        ({"expected_answer": []}, "expected_answer"),
        ({"expected_answer": ["a", ""]}, "an empty text cannot"),
        ({"expected_answer": 7}, "expected_answer"),
        ({"expected_answer": "(", "match_mode": "regex"}, "'\\(' is not a regular expression"),
        ({"extraction_mode": "middle"}, "extraction_mode"),
        ({"match_mode": "fuzzy"}, "match_mode"),
    ],
)
def test_a_row_that_nothing_can_match_is_refused_when_its_session_is_seeded(fields, complaint):
    with pytest.raises(TaskError, match=complaint) as caught:
        verdict(row(**fields), "Yes")
    assert caught.value.terminal


HOSTILE = ["\\boxed{" * 14_000, "\\text{" * 16_000, "answer " * 14_000, "answer:" * 14_000]
HOSTILE += [
    "}" * 100_000,
    "1," * 50_000,
    "9" * 4_900,
    "\n" * 100_000,
    "9" * 100_000,
    "final " * 16_000,
]
HOSTILE += [
    "\\boxed{" + "\\text{" * 1_600 + "}" * 1_601,
    "west virginia" * 700,
    "\u1e9b\u0323" * 30_000,
]


def test_a_hundred_kilobytes_that_mean_harm_are_compared_within_the_deadline():
    modes = ("boxed", "final_answer", "last_line", "full_response")
    ways = [{"extraction_mode": mode} for mode in modes]
    ways += [{"match_mode": "contains", "extraction_mode": "full_response"}]
    ways += [{"match_mode": "regex", "extraction_mode": "full_response"}]

    async def run():
        server = StringMatch(StringMatch.Config(regex_timeout_s=HANG_S), None, "string_match")
        try:
            async with asyncio.timeout(HANG_S):  # going over it again for each brace takes hours
                for said in HOSTILE:
                    response = make_response("m", [message_item("Answer: " + said)], None)
                    for fields in ways:
                        body = {**row("No such thing", **fields), "response": response}
                        found = await server.handle("/verify", orjson.dumps(body))
                        assert found.reward == 0.0
                        assert not getattr(found, "regex_timed_out", False)
        finally:
            await server.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("pattern", "text", "answer"),
    [
        (r"Result: (?P<answer>-?\d+)", "Result: 3, no: Result: -4.", "-4"),
        (r"(\w+)=(?P<answer>\d+)", "x=1 y=22", "22"),
        (r"<a>(.*?)</a>", "<a> 7 </a>", "7"),
        (r"\d+", "7 8", "8"),
        (r"(?P<answer>\d+)?!", "no number!", None),
        (r"\d+", "none", None),
    ],
)
def test_a_pattern_finds_the_answer_of_a_row_or_of_all(pattern, text, answer) -> None:
    own = verdict(row("22", extraction_pattern=pattern), text)
    of_all = verdict(row("22"), text, extraction_pattern=pattern)
    named = verdict(row("22", extraction_mode="regex"), text, extraction_pattern=pattern)
    assert own.extracted_answer == of_all.extracted_answer == answer
    assert named.extracted_answer == answer
    assert own.reward == float(answer == "22")


def test_a_row_decides_before_the_configuration() -> None:
    tasks = [row("5", extraction_mode="last_line"), row("4", extraction_pattern=r"a(\d)")]
    found = verdicts([(each, "a4 b3\n5") for each in tasks], extraction_pattern=r"b(\d)")
    assert [each.extracted_answer for each in found] == ["5", "4"]


def test_a_pattern_that_takes_too_long_is_no_answer() -> None:
    task = row("4", extraction_pattern=r"(a|aa)+$")
    found = verdict(task, "a" * 200 + "b", regex_timeout_s=0.05)
    assert found.regex_timed_out and found.reward == 0 and found.extracted_answer is None


def test_a_pattern_that_cannot_be_used_is_named_before_the_model_is_asked() -> None:
    with pytest.raises(TaskError, match="extraction_pattern: '\\(' is not a regular expression"):
        verdict(row(extraction_pattern="("), "")
    with pytest.raises(TaskError, match="regex needs an extraction_pattern"):
        verdict(row(extraction_mode="regex"), "")
    with pytest.raises(ValueError, match="is not a regular expression"):
        StringMatch.Config(extraction_pattern="(")


WORDS = [["12"], ["The Rams", "a team"], ["3 May 1901"]]
CELLS = {"House 1": {"Name": "Ana", "Drink": "tea"}, "House 2": {"Name": "Eric", "Drink": "milk"}}


@pytest.mark.parametrize(
    ("text", "reward", "exact"),
    [
        ("Answer: 12", 1.0, 1.0),
        ("Answer: 12.0", 1.0, 1.0),
        ("Answer: 12 points", 0.67, 0.0),
        ("Answer: rams", 0.5, 0.0),
        ("Answer: 3-May-1901", 1.0, 1.0),
        ("Answer: May", 0.0, 0.0),
        ("Answer: none of it", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_f1_of_words(text, reward, exact):
    found = verdict(row(WORDS, match_mode="words"), text)
    assert (found.reward, found.exact_match) == (reward, exact)


def test_similarity_of_a_text_with_a_prefix():
    task = row("Xq7Birds sing.", match_mode="sequence", required_prefix="Xq7")
    task["extraction_mode"] = "full_response"
    texts = ["Xq7Birds sing.", "Birds sing.", "Xq7Birds sang.", ""]
    found = verdicts([(task, text) for text in texts])
    assert [each.reward for each in found] == [1.0, 0.0, pytest.approx(0.909, abs=1e-3), 0.0]


def test_cells_of_the_last_solution():
    def answer(cells):
        return orjson.dumps({"reasoning": "{so}", "solution": cells}).decode()

    task = row(CELLS, match_mode="table", extraction_mode="full_response")
    shouted = {"House 1": {"Name": [" ANA"], "Drink": "Tea "}, "House 2": CELLS["House 2"]}
    texts = [
        *(answer(CELLS), answer(shouted), answer({"House 1": {"Name": "Ana", "Drink": 7}})),
        *(answer(CELLS)[:-2], "{" * 20_000, answer("House 1"), "[]", ""),
    ]
    found = verdicts([(task, text) for text in texts])
    assert [each.reward for each in found] == [1.0, 1.0, *[0.0] * 6]
    assert [each.correct_cells for each in found] == [4, 4, 1, *[0] * 5]


@pytest.mark.parametrize(
    ("expected", "mode"),
    [(CELLS, "normalised"), ("Yes", "table"), (["Yes"], "words"), (WORDS, "sequence")],
)
def test_an_expected_answer_that_does_not_fit_its_mode(expected, mode):
    with pytest.raises(TaskError, match="expected_answer: match_mode"):
        verdict(row(expected, match_mode=mode), "Yes")
