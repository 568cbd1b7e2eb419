"""Rows and answers to compare verifiers with, drawn from what models write."""

import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple


class Pair(NamedTuple):
    """A row and an answer; `kind` names what is tried."""

    kind: str
    row: dict[str, Any]
    answer: str


MODES = (
    "strict_single_letter_boxed",
    "lenient_boxed",
    "lenient_answer_colon",
    "lenient_answer_colon_md",
)
OPTIONS = ("4 m/s", "8 m/s", "16 m/s", "A cat", "none of the above", "Paris", "x = 2", "42")
BOXES = (
    r"{}",
    r"\text{{{}}}",
    r"({})",
    r"\textbf{{{}}}",
    r"\mathrm{{{}}}",
    r"{}: {text}",
    r"{}. {text}",
    r"\text{{{}}}: {text}",
    r"{text}",
    r"{} and {other}",
    r"\mathbf{{({})}}",
    r"\text{{ {} }}",
    " {} ",
    r"\Delta {}",
    r"{}^2",
    "1{text}",
    "-{text}",
    "not {text}",
    "It is {text}",
)
LINES = (
    "Answer: {}",
    "answer: {}",
    "**Answer:** {}",
    "Answer: ({})",
    "Answer: {text}",
    "Answer: {}. {text}",
    "**Answer: {}**",
    "The answer is {}.",
    "Answer: I think {}",
    "Answer: {}/{other}",
    "Answer: {}/Z",
    "Answer: {} or {other}",
    "Answer: not {}",
    "Answer：{}",
    "Answer: {other}\nNo, that is wrong.\nAnswer: {}",
    "Answer: {}\nAnswer: I am sure.",
    "Final Answer: {}",
)


def choose(chance: Random) -> Pair:
    """Multiple choice."""
    texts = chance.sample(OPTIONS, 4)
    letters = "ABCD"
    options = [{letter: text} for letter, text in zip(letters, texts, strict=True)]
    said = chance.randrange(4)
    mode = chance.choice(MODES)
    in_line = mode.startswith("lenient_answer_colon")
    words = {"text": texts[said], "other": letters[(said + 1) % 4]}
    form = chance.choice(LINES if in_line else BOXES)
    inner = form.format(letters[said], **words)
    shown = inner if in_line else rf"So it is \boxed{{{inner}}}"
    row = {"options": options, "expected_answer": chance.choice(letters), "grading_mode": mode}
    if chance.random() < 0.7:
        row["expected_answer"] = letters[said]
    return Pair(f"{mode}: {form}", row, chance.choice(("", "Let me think.\n")) + shown)


NUMBERS = ("7", "-3", "1/2", "0.5", "2.50", "1000", "12", "3.14159", "0", "144")
LATEX = (r"\frac{1}{2}", r"\sqrt{2}", r"x^2+1", r"2\pi", r"(1,2)", r"\{1,2\}", r"[0,1)", "50\\%")
MATHS = (
    r"\boxed{{{}}}",
    r"The answer is \boxed{{{}}}.",
    r"$\boxed{{{}}}$",
    r"${}$",
    "{}",
    "Final Answer: {}",
)


def calculate(chance: Random) -> Pair:
    """Mathematics."""
    gold = chance.choice(NUMBERS + LATEX)
    said = gold if chance.random() < 0.6 else chance.choice(NUMBERS + LATEX)
    form = chance.choice(MATHS)
    return Pair(form, {"expected_answer": gold}, form.format(said))


VALUES = {
    "integer": (1, -2, 0, 10**6, 1.0, 1.5, "1", True, None),
    "number": (1, 1.5, -0.25, "1.5", True, None),
    "string": ("a", "", "12", 12, None),
    "boolean": (True, False, "true", 1),
}


def structure(chance: Random) -> Pair:
    """A JSON document against a schema."""
    names = chance.sample(("name", "age", "tags", "price", "ok"), chance.randint(1, 3))
    kinds = {name: chance.choice([*VALUES]) for name in names}
    properties: dict[str, Any] = {name: {"type": kind} for name, kind in kinds.items()}
    schema = {"type": "object", "properties": properties, "required": names}
    document: dict[str, Any] = {}
    for name, kind in kinds.items():
        is_right = chance.random() < 0.75
        document[name] = chance.choice(VALUES[kind][: 2 if is_right else None])
    if chance.random() < 0.1:
        document.pop(names[0])
    if chance.random() < 0.1:
        document["more"] = 1
    text = json.dumps(document)
    text = chance.choice((text, text, f"```json\n{text}\n```", f"Here: {text}"))
    return Pair("json", {"schema_str": json.dumps(schema), "schema_type": "json"}, text)


READ = "a, b = map(int, input().split())\n"
PROGRAMS: tuple[tuple[str, str, Callable[[int, int], str]], ...] = (
    ("sum", f"{READ}print(a + b)", lambda a, b: f"{a + b}\n"),
    ("quotient", f"{READ}print(a / b)", lambda a, b: f"{a / b}\n"),
    ("lines", f"{READ}print(a)\nprint(b)", lambda a, b: f"{a}\n{b}\n"),
    ("wrong", f"{READ}print(a - b)", lambda a, b: f"{a + b}\n"),
    ("raises", "raise SystemExit(3)", lambda a, b: f"{a + b}\n"),
    ("spaces", f"{READ}print(a, b, '')", lambda a, b: f"{a} {b}\n"),
)
FENCES = ("```python\n{}\n```", "Here it is.\n```python\n{}\n```\nDone.", "```\n{}\n```", "{}")


def program(chance: Random) -> Pair:
    """Programs that read standard input."""
    name, code, expected = chance.choice(PROGRAMS)
    numbers = [(chance.randint(1, 99), chance.randint(1, 9)) for _ in range(2)]
    inputs = [f"{a} {b}\n" for a, b in numbers]
    outputs = [expected(*each) for each in numbers]
    fence = chance.choice(FENCES)
    row = {"verifier_metadata": {"unit_tests": {"inputs": inputs, "outputs": outputs}}}
    return Pair(f"{name}, {fence!r}", row, fence.format(code))


WORDS = "the quick brown fox jumps over a lazy dog and then it sleeps".split()  # noqa: SIM905
FOLLOWED: tuple[tuple[str, Callable[[Random], dict[str, Any]]], ...] = (
    ("change_case:english_lowercase", lambda chance: {}),
    ("change_case:english_capital", lambda chance: {}),
    ("punctuation:no_comma", lambda chance: {}),
    ("startend:quotation", lambda chance: {}),
    ("startend:end_checker", lambda chance: {"end_phrase": chance.choice(WORDS)}),
    ("keywords:existence", lambda chance: {"keywords": chance.sample(WORDS, 2)}),
    ("keywords:forbidden_words", lambda chance: {"forbidden_words": chance.sample(WORDS, 2)}),
    (
        "keywords:frequency",
        lambda chance: {
            "keyword": chance.choice(WORDS),
            "frequency": chance.randint(1, 3),
            "relation": chance.choice(("at least", "less than")),
        },
    ),
    (
        "length_constraints:number_words",
        lambda chance: {
            "num_words": chance.randint(5, 30),
            "relation": chance.choice(("at least", "less than")),
        },
    ),
    (
        "length_constraints:number_sentences",
        lambda chance: {
            "num_sentences": chance.randint(1, 5),
            "relation": chance.choice(("at least", "less than")),
        },
    ),
    ("detectable_format:number_bullet_lists", lambda chance: {"num_bullets": chance.randint(1, 3)}),
    ("detectable_format:title", lambda chance: {}),
    ("detectable_format:json_format", lambda chance: {}),
    ("detectable_content:number_placeholders", lambda chance: {"num_placeholders": 1}),
    ("length_constraints:number_paragraphs", lambda chance: {"num_paragraphs": 2}),
    (
        "length_constraints:nth_paragraph_first_word",
        lambda chance: {
            "num_paragraphs": 2,
            "nth_paragraph": 2,
            "first_word": chance.choice(WORDS),
        },
    ),
)


def follow(chance: Random) -> Pair:
    """One instruction of IFEval, and a text that follows it or not."""
    name, make = chance.choice(FOLLOWED)
    sentences = [
        " ".join(chance.choices(WORDS, k=chance.randint(2, 8))).capitalize() + chance.choice(".!?")
        for _ in range(chance.randint(1, 5))
    ]
    text = chance.choice((" ", " ", "\n\n", "\n* ", "\n\n***\n\n")).join(sentences)
    text = chance.choice(
        (text, text, text.lower(), text.upper(), f'"{text}"', f"<<{text}>>\n{text}")
    )
    text = chance.choice(("", "", "", "\n\n")) + text
    text += chance.choice(("", "", ", " + chance.choice(WORDS), " [name]", '\n{"a": 1}'))
    row = {"instruction_id_list": [name], "kwargs": [make(chance)], "grading_mode": "binary"}
    return Pair(name, row, text)


GENERATORS: dict[str, Callable[[Random], Pair]] = {
    "mcqa": choose,
    "math_with_verify": calculate,
    "structured_outputs": structure,
    "code_gen": program,
    "instruction_following": follow,
}
