import asyncio
import importlib
import re
import sys
from pathlib import Path

import orjson
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import HANG_S, limit_only, skip_unless_installed

from rollout_kit import ConfigError, TaskError, make_response, message_item, reasoning_item
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

skip_unless_installed("nltk", "langdetect")

FOLDER = Path(__file__).parents[1]
InstructionFollowing = load("resources_servers", "instruction_following")
ROWS = [orjson.loads(line) for line in (FOLDER / "data/example.jsonl").read_bytes().splitlines()]
GERMAN = "Eis ist leichter als flüssiges Wasser, weil seine Moleküle weit auseinander stehen."
ENGLISH = "ice is lighter than water because its molecules stand further from each other."
SAID = ("gold_output", "wrong_output")
LONG = 100_000
CAPITALS = {"capital_frequency": 2, "capital_relation": "at least"}


def row(*instructions, **fields):
    return {
        "id": 1,
        "responses_create_params": {"input": [{"role": "user", "content": "Write."}]},
        "prompt": "Write.",
        "instruction_id_list": [id for id, _ in instructions],
        "kwargs": [arguments for _, arguments in instructions],
        **fields,
    }


def verdicts(pairs, **settings):
    """Of each (row, text or items), by one server."""

    async def run():
        config = InstructionFollowing.Config(
            **{"num_verify_workers": 1, "verify_timeout_s": HANG_S, **settings}
        )
        server = InstructionFollowing(config, None, "rules")
        await server.start()
        try:
            found = []
            for task, said in pairs:
                with entered(Session()):
                    await server.handle("/seed_session", orjson.dumps(task))
                    items = [message_item(said)] if isinstance(said, str) else said
                    body = orjson.dumps({**task, "response": make_response("m", items, None)})
                    found.append(await server.handle("/verify", body))
            return found
        finally:
            await server.stop()

    return asyncio.run(run())


def imported(name):
    """A file of the folder as a worker has it."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
        importlib.import_module("checks")
    return importlib.import_module(name)


TABLE = [
    ("keywords:existence", {"keywords": ["tea", "cup"]}, "Cups of Tea", "Only tea"),
    ("keywords:existence", {"keywords": ["colou?r"]}, "The color", "The hue"),
    (
        "keywords:frequency",
        {"keyword": "a", "frequency": 3, "relation": "at least"},
        "banana",
        "an",
    ),
    ("keywords:frequency", {"keyword": "x", "frequency": 2, "relation": "less than"}, "x", "xX"),
    ("keywords:forbidden_words", {"forbidden_words": ["bad"]}, "badly", "so Bad."),
    (
        "keywords:letter_frequency",
        {"letter": "E", "let_frequency": 2, "let_relation": "at least"},
        "Eve",
        "e",
    ),
    (
        "keywords:letter_frequency",
        {"letter": "!", "let_frequency": 1, "let_relation": "less than"},
        "a",
        "a!",
    ),
    ("language:response_language", {"language": "de"}, GERMAN, ENGLISH),
    ("language:response_language", {"language": "en"}, "1234", GERMAN),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        "Dr. Smith came at 5 p.m. on Monday. He left.",
        "Dr. Smith of the U.S. Navy, e.g., came.",
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "less than"},
        "It is 3.5 m long... or so! Really?",
        "One. Two! Three?",
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        "***\na\n***\nb\n***",
        "a\n\nb",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a *** b", "a *** *** b"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "it's so", "a-b"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "a b", "a b c"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        'One.\n\n"then, two.',
        "Then one.\n\nTwo.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [[b]", "[a\nb] [c]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "x\np. s. y", "PS y"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "x P.P.S y", "P.S. y"),
    ("detectable_content:postscript", {"postscript_marker": "NB:"}, "nb: y", "n.b. y"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n - b", "* a\n**b**"),
    ("detectable_format:constrained_response", {}, "So: My answer is no.", "No."),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        "*a* **b**",
        "*a* ****",
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1 a Section 2 b",
        "SECTION 1 a SECTION 2 b",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', '{"a": 1} or so'),
    ("detectable_format:title", {}, "<<A title>>", "<< >> <<\n>>"),
    ("combination:two_responses", {}, "******a******b******", "a******a"),
    ("combination:two_responses", {}, "a******b", "a******b******c"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, " say it. It.", "It. Say it."),
    ("startend:end_checker", {"end_phrase": "The end."}, 'Well. "the END."', "The end. Or not"),
    ("startend:quotation", {}, ' "a" ', '"'),
    (
        "change_case:capital_word_frequency",
        CAPITALS,
        "The USA and AB-CD",
        "The USA",
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 1, "capital_relation": "less than"},
        "Nothing here",
        "I am",
    ),
    ("change_case:english_capital", {}, ENGLISH.upper(), GERMAN.upper()),
    ("change_case:english_lowercase", {}, ENGLISH, ENGLISH.capitalize()),
    ("punctuation:no_comma", {}, "a b", "a, b"),
    ("copy:copy", {"prompt_to_repeat": "Say it."}, "say it.\n", "Say it. It."),
    ("copy:copying_simple", {"prompt_to_repeat": "Say it."}, "say it.", "it"),
    ("copy:copying_multiple", {"prompt_to_repeat": "a", "N": 2}, "a ****** A", "a"),
    ("new:copy_span_idx", {"prompt_to_repeat": "abcdef", "n_start": 1, "n_end": 3}, "BC", "bcd"),
    (
        "copy:repeat_phrase",
        {"phrase": "time flies so fast", "small_n": 2},
        "time runs so fast and time flies very fast",
        "time runs so fast and time runs too fast",
    ),
    ("detectable_format:sentence_hyphens", {}, "It is.-So it is.", "It is. - So it is."),
    ("detectable_format:square_brackets", {}, "[one] [two]", "[one] two"),
    ("detectable_format:bigram_wrapping", {}, "<<I am>> <<at home>>", "<<I am>> at home"),
    ("keywords:no_adjacent_consecutive", {}, "a cat eats", "a bee"),
    ("keywords:word_once", {"keyword": "tea"}, "Tea it is", "tea, tea"),
    (
        "keywords:word_count_different_numbers",
        {"keyword": "tea", "frequency": 2, "relation": "at least"},
        "tea tea",
        "tea",
    ),
    ("keywords:exclude_word_harder", {"keyword": "tea"}, "tea it is", "my tea is"),
    ("keywords:palindrome", {}, "a level field", "no such thing"),
    (
        "keywords:keyword_specific_position",
        {"keyword": ["tea"], "n": 2, "m": 3},
        "So. We like tea.",
        "We like tea.",
    ),
    ("keywords:start_end", {}, "Tea is tea", "Tea is tea."),
    ("paragraphs:paragraphs", {}, "a\n***\nb", "a\n\nb"),
    ("paragraphs:paragraphs2", {}, "a\n\nb", "a\n\nb\n\nc"),
    ("first_word:first_word_sent", {"first_word": "so"}, "So it is. So be it.", "So it is. Be it."),
    ("first_word:first_word_answer", {"first_word": "So"}, "so it is", "It is so"),
    ("last_word:last_word_sent", {"last_word": "it"}, "So be it! Do it.", "So be it! Done."),
    ("last_word:last_word_answer", {"last_word": "It"}, "So be it!", "It is so."),
    ("punctuation:punctuation_dot", {}, "a!", "a."),
    ("punctuation:punctuation_exclamation", {}, "a.", "a!"),
    ("count:lowercase_counting", {"N": 1}, "THE tea", "the tea"),
    ("letters:letter_counting", {"N": 3, "relation": "less than"}, "a1b2", "abc"),
    (
        "letters:letter_counting2",
        {"letter": "a", "let_frequency": 1, "let_relation": "at least"},
        "A",
        "b",
    ),
    (
        "count:counting_composition",
        {"n_sent": 1, "n_words": 3},
        "It is.\n***\nHe is.\n***\nWe are.",
        "It is.\n***\nHe is.",
    ),
    ("count:count_unique", {}, "No word comes twice", "no no"),
    (
        "count:count_increment_word",
        {"keyword1": "one", "keyword2": "two"},
        "one two two",
        "one two",
    ),
]

LOOSE = ("reward", "prompt_loose", "num_instructions", "num_followed", "num_followed_loose")

IFBENCH = yaml.safe_load(Path(__file__).with_name("ifbench.yaml").read_text("utf-8"))
TABLE += [(each["id"], each["arguments"], each["right"], each["wrong"]) for each in IFBENCH]

NTH = "length_constraints:nth_paragraph_first_word"
SECOND_OF_THREE = {"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "beta"}
SECOND_OF_TWO = {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "In conclusion"}
CHINESE = "水结冰时分子之间的距离变大，所以冰比水轻。"

SHORT_ENGLISH = (
    "best regards, anna",
    "thank you, anna",
    "kind regards, tom",
    "good morning",
    "happy birthday, maria",
    "dear john, i am fine",
    "it depends on you",
    "open the door",
    "buy milk and eggs",
)
SHORT_OTHER = (
    "nein, danke",
    "mit freundlichen grüßen, anna",
    "cordiali saluti",
    "bonjour monsieur",
    "no, gracias",
    "guten morgen",
    "ik weet het niet",
    "jag vet inte",
    "por favor",
    "das ist gut",
)

RELATIVES = [
    (NTH, SECOND_OF_THREE, "\n\nalpha\n\nbeta\n\ngamma\n\n\n", 1),
    (NTH, SECOND_OF_THREE, "alpha\n \nbeta\n\n\t\n\ngamma", 1),
    (NTH, SECOND_OF_THREE, "alpha\r\n\r\nBeta: two\r\n\r\ngamma", 1),
    (NTH, SECOND_OF_THREE, "alpha\n\n**Beta** two\n\ngamma", 1),
    (NTH, SECOND_OF_THREE, "alpha\n\n“Beta” — two\n\ngamma", 1),
    (NTH, SECOND_OF_THREE, "alpha\n\n\n\ngamma\n\nbeta", 0),
    (NTH, SECOND_OF_THREE, "alpha\n\nbeta\n\n \n\n", 0),
    (NTH, SECOND_OF_THREE, "alpha\n\nbeta-blocker\n\ngamma", 0),
    (NTH, SECOND_OF_THREE, "alpha\n\nbetas\n\ngamma", 0),
    (NTH, SECOND_OF_THREE, "alpha\nbeta\n\ngamma\ndelta", 0),
    (NTH, SECOND_OF_TWO, "alpha\n\n“In conclusion: two", 1),
    (NTH, SECOND_OF_TWO, "alpha\n\nIn  Conclusion,\ntwo", 1),
    (NTH, SECOND_OF_TWO, "alpha\n\nIn", 0),
    (NTH, SECOND_OF_TWO, "alpha\n\nIn short conclusion", 0),
    (NTH, SECOND_OF_TWO, "alpha\n\nIn conclusions", 0),
    (NTH, {**SECOND_OF_TWO, "first_word": "Dr."}, "alpha\n\nDr. Who", 1),
    (NTH, {**SECOND_OF_TWO, "first_word": "It's"}, "alpha\n\nIt's two", 1),
    (NTH, {**SECOND_OF_TWO, "first_word": "It's"}, "alpha\n\nIt is two", 0),
    ("paragraphs:paragraphs2", {}, "a\n\n\n\nb", 1),
    ("paragraphs:paragraphs2", {}, "a\n\nb\n \nc", 0),
    ("first_word:first_word_answer", {"first_word": "So"}, "So, it is", 1),
    ("first_word:first_word_answer", {"first_word": "of course"}, "Of course! It is", 1),
    ("first_word:first_word_answer", {"first_word": "So"}, "Some do", 0),
    ("first_word:first_word_sent", {"first_word": "so"}, "So, it is. So: be it.", 1),
    ("change_case:english_capital", {}, "THANK YOU VERY MUCH!", 1),
    ("change_case:english_capital", {}, "MERRY CHRISTMAS", 1),
    ("change_case:english_capital", {}, "NO, thanks.", 0),
    ("change_case:english_capital", {}, "NEIN, DANKE.", 0),
    ("change_case:english_capital", {}, "BONJOUR MONSIEUR", 0),
    ("change_case:english_capital", {}, "JE NE SAIS PAS", 0),
    ("change_case:english_lowercase", {}, "hola, gracias", 0),
    ("language:response_language", {"language": "fr"}, "BONJOUR MONSIEUR", 1),
    ("language:response_language", {"language": "zh"}, CHINESE, 1),
    ("language:response_language", {"language": "zh-cn"}, CHINESE, 1),
    ("language:response_language", {"language": "ZH_Hans"}, CHINESE, 1),
    ("language:response_language", {"language": "zh-tw"}, CHINESE, 0),
    ("language:response_language", {"language": "ja"}, CHINESE, 0),
    ("language:response_language", {"language": "zh"}, ENGLISH, 0),
    ("language:response_language", {"language": "en-US"}, ENGLISH, 1),
    (
        "language:response_language",
        {"language": "zh"},
        "氷は水よりも軽い。分子が離れているからです。",
        0,
    ),
    ("format:line_indent", {}, "one\n\n\n  two", 1),
    ("format:sub-bullets", {}, "no bullets", 1),
    ("format:no_bullets_bullets", {}, "So it is.\n\nBe it.\n* one\n* two", 0),
    ("words:start_verb", {}, "WRITE THE LETTER TODAY.", 1),
    ("words:start_verb", {}, "Let's go.", 1),
    ("words:start_verb", {}, "Tidying up, he stopped by.", 1),
    ("words:start_verb", {}, "He wrote.", 0),
    ("words:start_verb", {}, "Well, write it.", 0),
    ("words:odd_even_syllables", {}, "Area code idea 42 is", 0),
    ("words:alphabet", {}, "!?", 0),
    ("custom:mcq_count_length", {}, "Question 1. Who?" + "\n" * 1000, 0),
    ("custom:date_format_list", {}, "1796-02-30", 0),
    ("custom:csv_special_character", {}, 'ProductID,Category,Brand,Price,Stock\n"&"', 0),
    (NTH, {**SECOND_OF_TWO, "first_word": "In short"}, 'One.\n\n \n\n"In short, two.', 1),
    (NTH, {**SECOND_OF_TWO, "first_word": "In short"}, "One.\n\nIn shortest, two.", 0),
    (NTH, {**SECOND_OF_TWO, "first_word": "two"}, "\n\nOne.\n\n\n\nTwo, three.\n\n", 1),
    (NTH, {**SECOND_OF_TWO, "nth_paragraph": 1, "first_word": "one"}, "One.", 0),
    ("change_case:english_capital", {}, "ДА, СПАСИБО.", 0),
    (
        "change_case:english_capital",
        {},
        "DAS EIS IST LEICHTER ALS DAS WASSER, WEIL ES SCHWIMMT.",
        0,
    ),
    *(("change_case:english_lowercase", {}, text, 1) for text in SHORT_ENGLISH),
    *(("change_case:english_capital", {}, text.upper(), 1) for text in SHORT_ENGLISH),
    *(("change_case:english_lowercase", {}, text, 0) for text in SHORT_OTHER),
    *(("change_case:english_capital", {}, text.upper(), 0) for text in SHORT_OTHER),
]

CASES = [
    orjson.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_bytes().splitlines()
]


def every_kind(*, by_nltk=True):
    """A row with an instruction of each kind."""
    kinds = imported("kinds").KINDS
    once = {id: given for id, given, *_ in TABLE if by_nltk or not kinds[id].by_nltk}
    return row(*once.items())


def test_each_kind_tells_a_response_that_follows_from_one_that_does_not():
    pairs = [(row((id, given)), said) for id, given, *texts in TABLE for said in texts]
    found = [verdict.reward for verdict in verdicts(pairs)]
    rewards = zip(TABLE, found[::2], found[1::2], strict=True)
    assert [entry for entry, *both in rewards if both != [1.0, 0.0]] == []


def split_thought(answer):
    """An answer as model servers return it, with its reasoning as an item."""
    thought, closed, said = answer.removeprefix("<think>").partition("</think>")
    return [reasoning_item(thought), message_item(said)] if closed else answer


def test_each_case_has_its_reward():
    fields = {"responses_create_params": {"input": "Write."}}
    found = verdicts([({**fields, **case["row"]}, split_thought(case["answer"])) for case in CASES])
    wrong = [
        case["answer"]
        for case, verdict in zip(CASES, found, strict=True)
        if verdict.reward != case["reward"]
    ]
    assert wrong == []


def test_relatives_of_the_cases_have_their_rewards():
    found = verdicts([(row((id, given)), said) for id, given, said, _ in RELATIVES])
    rewards = zip(RELATIVES, found, strict=True)
    assert [entry for entry, verdict in rewards if verdict.reward != entry[3]] == []


def test_fields_in_verifier_metadata_count_if_both_places_have_them():
    task = row(("punctuation:no_comma", {}))
    other = {"instruction_id_list": ["startend:quotation"], "kwargs": [{}]}
    [verdict] = verdicts([({**task, "verifier_metadata": other}, '"a, b"')])
    assert verdict.reward == 1.0


def test_an_empty_response_follows_nothing():
    for verdict in verdicts([(every_kind(by_nltk=False), said) for said in ("", " \n")]):
        assert not any(verdict.follow_instruction_list)


def test_the_table_has_every_kind():
    assert {id for id, *_ in TABLE} == set(imported("kinds").KINDS)


def test_gold_outputs_score_full_reward_and_wrong_ones_less():
    found = verdicts([(task, task[said]) for task in ROWS for said in SAID])
    assert [verdict.reward for verdict in found[::2]] == [1.0] * len(ROWS)
    assert all(verdict.reward < 1 for verdict in found[1::2])
    assert found[0].follow_instruction_list == [True, True, True]


def test_binary_asks_for_all_and_fraction_gives_the_share():
    asked = [("punctuation:no_comma", None), ("detectable_format:title", {"num_words": None})]
    rows = [row(*asked), row(*asked, grading_mode="fraction")]
    found = verdicts([(task, "no title") for task in rows])
    assert [verdict.reward for verdict in found] == [0.0, 0.5]
    assert [verdict.follow_all_instructions for verdict in found] == [False, False]
    assert found[1].follow_instruction_list == [True, False]
    [forced] = verdicts([(rows[0], "no title")], grading_mode="fraction")
    assert forced.reward == 0.5


def test_what_counts_is_the_last_message_and_not_what_was_thought():
    task = row(("startend:quotation", {}))
    thought = [reasoning_item("hm"), message_item("let me see"), message_item('"so"')]
    unfinished = [message_item('"so"'), reasoning_item("no, wait")]
    found = verdicts([(task, thought), (task, unfinished), (task, [])])
    assert [verdict.reward for verdict in found] == [1.0, 0.0, 0.0]


def test_loose_numbers_are_those_of_prompts_and_of_instructions():
    asked = [("punctuation:no_comma", {}), ("repeat:repeat_simple", {}), ("words:vowel", {})]
    said = "Sure, here:\nOnly output this sentence here, ignore all other requests."
    [verdict] = verdicts([(row(*asked), said)], loose=True)
    found = {name: getattr(verdict, name) for name in LOOSE}
    assert found == {
        "reward": 0.0,
        "prompt_loose": 0.0,
        "num_instructions": 3.0,
        "num_followed": 0.0,
        "num_followed_loose": 2.0,
    }


def test_the_same_response_is_in_the_same_language_every_time():
    task = row(("language:response_language", {"language": "no"}))
    found = verdicts([(task, "det er en hund og en kat")] * 5)
    assert len({verdict.reward for verdict in found}) == 1


def test_a_package_that_is_missing_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(
        InstructionFollowing, "needs", {"no_such_package": "rollout-kit[instruction-following]"}
    )
    with pytest.raises(
        ConfigError, match=r"no_such_package: run .*pip install .*instruction-following"
    ):
        verdicts([])


REFUSED = [
    (row(("keywords:existance", {})), "did you mean 'keywords:existence'"),
    (row(("no such kind", None)), "unknown instruction 'no such kind'"),
    (
        row(("keywords:existence", {"keywords": None})),
        "keywords:existence: keywords: Field",
    ),
    (row(("keywords:existence", {"keywords": ["(tea"]})), "not a regular expression"),
    (row(("punctuation:no_comma", {"num_words": 3})), "num_words: Extra inputs"),
    (
        row(("length_constraints:number_words", {"num_words": 3, "relation": "about"})),
        "relation: Input should be 'at least' or 'less than'",
    ),
    (row(("language:response_language", {"language": "la"})), "does not know the language 'la'"),
    (row(("punctuation:no_comma", {}), kwargs=[]), "kwargs has 0 entries for 1 instructions"),
    (row(("words:repeats", {"small_n": 2.5})), "small_n: Input should be a valid integer"),
    (row(), "instruction_id_list"),
    (row(("punctuation:no_comma", {}), grading_mode="all"), "grading_mode"),
]


def test_a_row_that_cannot_be_checked_is_refused_when_its_session_is_seeded():
    async def refusals():
        server = InstructionFollowing(InstructionFollowing.Config(), None, "rules")
        try:
            for task, _ in REFUSED:
                with entered(Session()), pytest.raises(TaskError) as caught:
                    await server.handle("/seed_session", orjson.dumps(task))
                yield caught.value
        finally:
            await server.stop()

    async def run():
        return [error async for error in refusals()]

    errors = asyncio.run(run())
    assert all(error.terminal for error in errors)
    for error, (_, complaint) in zip(errors, REFUSED, strict=True):
        assert complaint in str(error)


HOSTILE = ["[" * LONG, "\n" * LONG + "x", "* " * (LONG // 2), "<<" * (LONG // 2)]
HOSTILE += ['"' * LONG, "a." * (LONG // 2), "time " * (LONG // 5), "{" * LONG, "." * LONG]
HOSTILE += ["ß\u0130 " * (LONG // 3), "Section 1" * (LONG // 9), "P. P. " * (LONG // 6)]


@pytest.mark.slow
def test_a_hundred_kilobytes_that_mean_harm_are_checked_in_time():
    pairs = [(every_kind(by_nltk=False), said) for said in HOSTILE]
    capitals = row(("change_case:capital_word_frequency", CAPITALS))
    pairs += [(capitals, said) for said in HOSTILE if said[0] in "[{.P"]
    found = verdicts(pairs)
    assert not any(verdict.verify_timed_out for verdict in found)


def test_a_keyword_that_never_ends_is_cut_off_and_the_next_response_is_checked(monkeypatch):
    limit_only("a" * 50, monkeypatch)
    endless = row(("keywords:existence", {"keywords": [r"(a+)+$"]}))
    found = verdicts(
        [(endless, "a" * 50 + "!"), (endless, "b a")], verify_timeout_s=0.5, num_verify_workers=1
    )
    assert [(verdict.reward, verdict.verify_timed_out) for verdict in found] == [
        (0.0, True),
        (1.0, False),
    ]


@settings(deadline=None)
@given(st.text("*- \n\tab[]<>", max_size=30))
@example("*\n\n* b")
@example("* \n* b")
@example("<<>>>")
def test_faster_counts_equal_the_published_patterns(text):
    counting = imported("counting")
    assert counting.count_placeholders(text) == len(re.findall(r"\[.*?\]", text))
    assert counting.count_bullets(text) == sum(
        len(re.findall(pattern, text, re.MULTILINE)) for pattern in (r"^\s*\*[^\*].*$", r"^\s*-.*$")
    )
    titles = re.findall(r"<<[^\n]+>>", text)
    assert counting.has_title(text) == any(
        title.lstrip("<").rstrip(">").strip() for title in titles
    )
