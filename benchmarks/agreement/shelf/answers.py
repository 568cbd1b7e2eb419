"""Made answers: right, wrong, empty, cut off, badly formatted and hostile."""

from collections.abc import Iterator
from string import ascii_uppercase

from rollout_kit.types import JsonObject

Answers = Iterator[tuple[str, str]]
"""Kind and text of each answer."""

LONG = 20_000


def choose(task: JsonObject, number: int) -> Answers:
    """Answers with the letter of an option."""
    given = task["expected_answer"]
    right = given[0] if isinstance(given, list) else given
    letters = ascii_uppercase[: len(task["options"])]
    wrong = next(each for each in letters if each not in given)
    text = next(option[right] for option in task["options"] if right in option)
    yield "right", f"ANSWER: {right}"
    yield "right", f"First, this.\nThen that: {wrong} is not it.\n\nANSWER: {right}"
    yield "right", f"I think so.\n**ANSWER: {right}**"
    yield "wrong", f"ANSWER: {wrong}"
    yield "wrong", f"It must be this one.\n\nANSWER: {wrong}"
    yield "empty", ""
    yield "empty", " \n\n"
    yield "cut", f"Option {wrong} is not it, and so we look at"
    yield "cut", "We now look at each of them.\nANSWER:"
    yield "lower", f"answer: {right}"
    yield "point", f"ANSWER: {right}."
    yield "bracket", f"ANSWER: ({right})"
    yield "label", f"ANSWER: {right}) {text.strip()}"
    yield "prose", f"The answer is {right}."
    yield "bare", right
    yield "box", f"So it is \\boxed{{{right}}}."
    yield "two", f"ANSWER: {right}, {wrong}"
    yield "revised", f"ANSWER: {wrong}\nNo, that is wrong.\nANSWER: {right}"
    yield "text", text.strip()
    yield "echo", "ANSWER: [LETTER]"
    yield "hostile", "\n".join(f"ANSWER: {each}" for each in letters if each not in given)
    yield "hostile", "ANSWER: " + wrong * LONG
    yield "hostile", f"{{{{ 7 * 7 }}}} __import__('os')\x00\nANSWER: {wrong}"


def calculate(task: JsonObject, number: int) -> Answers:
    """Answers with a number or a formula in a box."""
    right = str(task["expected_answer"])
    yield "right", f"So it is $\\boxed{{{right}}}$."
    yield "right", f"First, this.\n\nTherefore, the answer is \\boxed{{{right}}}."
    yield "right", f"\\[ x = \\boxed{{{right}}} \\]"
    yield "wrong", f"So it is $\\boxed{{{right} + 1}}$."
    yield "wrong", "So it is $\\boxed{-987654}$."
    yield "wrong", "\\boxed{\\text{none}}"
    yield "empty", ""
    yield "empty", "  \n"
    yield "cut", f"So it is $\\boxed{{{right}"
    yield "cut", "We first factor the polynomial and"
    yield "spaced", f"So it is \\boxed{{ {right} }}."
    yield "dollars", f"So it is \\boxed{{${right}$}}."
    yield "revised", f"\\boxed{{-987654}}. No, it is \\boxed{{{right}}}."
    yield "prose", f"The final answer is {right}."
    yield "bare", right
    yield "unboxed", f"**Answer:** ${right}$"
    yield "fbox", f"So it is \\fbox{{{right}}}."
    yield "hostile", "\\boxed{" * 200
    yield "hostile", "\\boxed{\\frac{1}{0}}"
    yield "hostile", "\\boxed{__import__('os').system('true')}"


def count(task: JsonObject, number: int) -> Answers:
    """Answers with a number at the end."""
    right = str(task["expected_answer"])
    yield "right", f"Antwort: {right}"
    yield "right", f"Erst 3, dann 4.\n\nAntwort: {right}"
    yield "right", f"Respuesta: {right}."
    yield "right", f"答え: {right.replace(',', '')}"
    yield "wrong", "Antwort: 98765"
    yield "wrong", f"Antwort: {right}1"
    yield "empty", ""
    yield "empty", " \n"
    yield "cut", "Zuerst addieren wir die"
    yield "cut", "Antwort:"
    yield "decimals", f"Antwort: {right}.00"
    yield "money", f"Antwort: ${right}"
    yield "bold", f"**Antwort: {right}**"
    yield "unit", f"Antwort: {right} Euro"
    yield "box", f"Antwort: \\boxed{{{right}}}"
    yield "sentence", f"Das macht {right}, weil 2 + 2 = 4 ist."
    yield "negative", f"Antwort: -{right}"
    yield "hostile", "Antwort: " + "9" * LONG
    yield "hostile", "Antwort: 1e5 __import__('os') {{ 7 * 7 }}"
    yield "hostile", "1 2 3 4 5 6 7 8 9 10 11 98765"


def program(task: JsonObject, number: int) -> Answers:
    """Answers with a function."""
    tests = task["unit_tests"]
    if tests.get("program") is None:
        return
    gold = task["gold_output"].replace("\r", "").strip().removeprefix("```python\n")
    gold = gold.removesuffix("```").strip("\n")
    wrong = gold.replace(" + b", " - b - 1")
    raising = "def add(a, b):\n    raise ValueError('no')"
    yield "right", f"```python\n{gold}\n```"
    yield "right", f"Here it is:\n\n```python\n{gold}\n```\nIt adds."
    yield "right", f"```python\n# {number}\n{gold}\n\n\n```"
    yield "wrong", f"```python\n{wrong}\n```"
    yield "wrong", f"```python\n{raising}\n```"
    yield "wrong", "```python\ndef add(a, b):\n    return None\n```"
    yield "empty", ""
    yield "empty", " \n"
    yield "cut", f"```python\n{gold[: len(gold) // 3]}\n```"
    yield "cut", "```python\ndef add(a, b"
    yield "two", f"```python\n{gold}\n```\nNo:\n```python\n{wrong}\n```"
    yield "second", f"```python\n{wrong}\n```\nNo:\n```python\n{gold}\n```"
    yield "bare", gold
    yield "prose", "I cannot write code."
    yield "whole", f"```python\ndef add(a, b):\n    return a + b + {number}\n```"
    yield "syntax", "```python\ndef add(a, b) return a + b\n```"
    yield "hostile", "```python\ndef add(a, b):\n    raise SystemExit(1)\n```"
    yield "exits", "```python\nimport sys\nsys.exit(0)\n```"
    yield "exits", "```python\nimport os\ndef add(a, b):\n    os._exit(0)\n```"
    yield "hostile", "```python\ndef add(a, b):\n    return __import__('nothing')\n```"


def conclude(task: JsonObject, number: int) -> Answers:
    """Answers with a text after "the answer is"."""
    right = task["expected_answer"]
    yield "right", f"We look at it. So the answer is {right}."
    yield "right", f"First this.\nThen that.\nSo the answer is {right}."
    yield "right", f"the answer is {right}."
    yield "wrong", "So the answer is (Z)."
    yield "wrong", f"So the answer is not {right}."
    yield "empty", ""
    yield "empty", " \n"
    yield "cut", "So the answer is"
    yield "cut", "We look at it. So the"
    yield "point", f"So the answer is {right}"
    yield "capital", f"The answer is {right}."
    yield "bold", f"So the answer is **{right}**."
    yield "revised", f"So the answer is (Z). No, so the answer is {right}."
    yield "second", f"So the answer is {right}.\nQ: And now?\nSo the answer is (Z)."
    yield "bare", right
    yield "lower", f"So the answer is {right.lower()}."
    yield "spaced", f"So the answer is  {right} ."
    yield "hostile", "the answer is " * 2_000
    yield "hostile", "So the answer is " + "(" * LONG + "."
    yield "hostile", "{{ 7 * 7 }} __import__('os') So the answer is \x00."
