"""Verdicts on generated answers to BFCL and its prompts, here and by its own evaluator.

    python -m venv .peers && .peers/bin/pip install --no-deps bfcl-eval==2026.3.23
    .peers/bin/pip install numpy==1.26.4 tree_sitter==0.21.3 tree-sitter-java==0.21.0 \\
        tree-sitter-javascript==0.21.4 requests tqdm pandas pydantic python-dotenv openai \\
        mistralai==1.7.0 anthropic cohere==5.18.0 typer tabulate google-genai mpmath==1.3.0 \\
        tenacity writer-sdk overrides boto3 beautifulsoup4 html2text rank_bm25==0.2.2 \\
        google-search-results networkx==3.3 filelock==3.20.0 huggingface_hub transformers
    python -m benchmarks.agreement.bfcl .peers/bin/python

An answer is right, wrong, empty, cut off, badly formatted or hostile, in both modes. The command
fails if a verdict differs in a way that `EXPLAINED` does not name.
"""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollout_kit.collecting.data.benchmarks.bfcl_gold import NEXT, choose_calls, write_calls
from rollout_kit.collecting.data.benchmarks.bfcl_rows import MULTI_TURN, read_bfcl
from rollout_kit.collecting.data.benchmarks.origins import fetch_wheel
from rollout_kit.responses import function_call_item, message_item
from rollout_kit.types import JsonObject

from .ours import require, shorten, verify

CHILD = Path(__file__).with_name("bfcl_child.py")

NUM_ROWS = {"fc": 170, "prompt": 90}
"""Mode → rows of which answers are made; of conversations, a third."""

EXPLAINED = {
    "crash": "its evaluation ends with an exception, and ours gives 0",
    "code in a name": "it executes a name that is an expression",
    "code in an argument": "it executes an argument that is an expression",
    "call in a text": "it replaces what looks like a call inside of a text",
    "builtin": "it calls functions of Python that a task does not have",
    "foreign syntax": "it reads Java and JavaScript in a text by a grammar, and we by their"
    " brackets and commas",
}
"""Kind of a difference → what is the reason."""

MAX_STEPS = 20
"""Most steps with calls in a turn; a collector ends a conversation with more."""

HOSTILE = (
    "__import__('os').getcwd() + 'x'",
    "(lambda: 1)() + 1",
    "len('abc') + 1",
    "open('/dev/null').name + ''",
)
"""Expressions that a reader must not execute; harmless if one does."""

Step = Any
"""Calls `[(name, JSON of arguments), …]`, or a text."""


class Answer(NamedTuple):
    """One answer: its steps in each turn, and which difference is expected of it."""

    row: JsonObject
    kind: str
    turns: list[list[Step]]
    explained: str = ""


def main(words: Sequence[str]) -> int:
    """Print what differs; returns the exit status."""
    wheel = fetch_wheel("bfcl-eval", "2026.3.23", print)
    found = {mode: [*make_answers(read_bfcl(wheel, mode), mode)] for mode in NUM_ROWS}
    theirs = ask_peer(words[0], found)
    left = 0
    for mode, answers in found.items():
        asked = [(answer.row, to_items(answer, mode)) for answer in answers]
        own = [require(each)["reward"] == 1 for each in asyncio.run(verify("bfcl", asked))]
        left += compare(mode, answers, own, [verdict for verdict, _ in theirs[mode]])
        left += compare_prompts(mode, answers, [asked for _, asked in theirs[mode]])
    print(f"{sum(map(len, found.values()))} answers, {left} unexplained differences")
    return int(left > 0)


def make_answers(rows: Iterator[JsonObject], mode: str) -> Iterator[Answer]:
    """Answers to rows of all categories, in equal parts."""
    by_category: dict[str, list[JsonObject]] = {}
    for row in rows:
        by_category.setdefault(row["category"], []).append(row)
    chance = random.Random(7)
    share = NUM_ROWS[mode] // len(by_category)
    for category, own in by_category.items():
        for row in chance.sample(own, min(share, len(own))):
            make = make_conversations if category in MULTI_TURN else make_calls
            yield from make(row, mode, chance)


def to_step(calls: list[JsonObject], row: JsonObject) -> Step:
    if row["mode"] == "prompt":
        return write_calls(calls, row.get("language", "python"))
    return [
        (name.replace(".", "_"), json.dumps(arguments))
        for call in calls
        for name, arguments in call.items()
    ]


def make_calls(row: JsonObject, mode: str, chance: random.Random) -> Iterator[Answer]:
    """Answers to a row of one turn."""
    gold = choose_calls(row) if row["kind"] == "single_turn" else invent_calls(row)
    foreign = "foreign syntax" if row.get("language", "python") != "python" else ""

    def answer(kind: str, step: Step, explained: str = "") -> Answer:
        in_text = foreign if mode == "prompt" and kind != "empty" else ""
        return Answer(row, kind, [[step]], explained or in_text)

    yield answer("right", to_step(gold, row))
    yield answer("right", to_step([_map(call, _reverse) for call in gold][::-1], row))
    yield answer("right", to_step([_map(call, _shout) for call in gold], row))
    for change in (_spoil_first, _drop_first, _add_unknown, _stringify, _floaten):
        yield answer("wrong", to_step([_map(call, change) for call in gold], row))
    yield answer("wrong", to_step([*gold, gold[0]], row))
    yield answer("wrong", to_step([{f"{name}x": a for name, a in gold[0].items()}], row))
    yield answer("empty", "")
    yield answer("badly formatted", "I cannot do that.")
    yield answer("badly formatted", "[]")
    first = to_step(gold, row)
    if mode == "prompt":
        yield answer("cut off", first[: chance.randrange(1, len(first))])
        for text in (f"```python\n{first}\n```", f"Sure: {first}", first[1:-1], f"'{first}'"):
            yield answer("badly formatted", text)
        name = next(iter(gold[0]))
        for code in HOSTILE:
            yield answer("hostile", f"[{name}(x={code})]", "code in an argument")
        yield answer("hostile", f"[{name}(x={'[' * 150 + ']' * 150})]")
        yield answer("hostile", f"[{name}(x=3 * 4, y=-2 ** 2, z=g(h=1), k=(1, 2), *[1], **d)]")
        return
    name, arguments = first[0]
    yield answer("cut off", [(name, arguments[: chance.randrange(1, len(arguments))])])
    for text in ("[1]", "null", "5", '"a"', "{}", '{"a": NaN}', ""):
        yield answer("badly formatted", [(name, text)])
    yield answer("hostile", [(name, '{"x": ' + "[" * 500 + "]" * 500 + "}")])
    yield answer("hostile", [("__import__('os').getcwd", "{}")])
    yield answer("hostile", [(name, arguments), ("exit", "{}")])


def invent_calls(row: JsonObject) -> list[JsonObject]:
    """A call of the first function of a row without answers."""
    tools = row["responses_create_params"].get("tools")
    name = tools[0]["name"] if tools else "f"
    return [{name: {"a": 1, "b": "text", "c": [1, 2]}}]


def _map(call: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    return {name: change(dict(arguments)) for name, arguments in call.items()}


def _reverse(arguments: JsonObject) -> JsonObject:
    return dict(reversed(arguments.items()))


def _shout(arguments: JsonObject) -> JsonObject:
    return {
        key: f" {value.upper()}." if isinstance(value, str) else value
        for key, value in arguments.items()
    }


def _spoil_first(arguments: JsonObject) -> JsonObject:
    for key, value in arguments.items():
        if isinstance(value, str):
            return {**arguments, key: value + "zz"}
        if isinstance(value, int | float):
            return {**arguments, key: value + 1}
        return {**arguments, key: [value]}
    return {"zz": 1}


def _drop_first(arguments: JsonObject) -> JsonObject:
    return dict([*arguments.items()][1:])


def _add_unknown(arguments: JsonObject) -> JsonObject:
    return {**arguments, "zz_unknown": 1}


def _stringify(arguments: JsonObject) -> JsonObject:
    return {key: str(value) for key, value in arguments.items()}


def _floaten(arguments: JsonObject) -> JsonObject:
    return {key: float(value) if type(value) is int else value for key, value in arguments.items()}


def make_conversations(row: JsonObject, mode: str, chance: random.Random) -> Iterator[Answer]:
    """Answers to a row of several turns."""
    gold: list[list[JsonObject]] = row["ground_truth"]
    full = next(number for number, turn in enumerate(gold) if turn)

    def write(turns: list[list[list[JsonObject]]]) -> list[list[Step]]:
        return [[*(to_step(calls, row) for calls in turn), "Done."] for turn in turns]

    def with_turn(steps: list[list[JsonObject]]) -> list[list[list[JsonObject]]]:
        return [steps if at == full else [turn] if turn else [] for at, turn in enumerate(gold)]

    own = gold[full]
    yield Answer(row, "right", write([[turn] if turn else [] for turn in gold]))
    if max(map(len, gold)) <= MAX_STEPS:
        yield Answer(row, "right", write([[[call] for call in turn] for turn in gold]))
    yield Answer(row, "right", write(with_turn([[{"cat": {"file_name": "none"}}], own])))
    yield Answer(row, "right", write([[turn[::-1]] if turn else [] for turn in gold]))
    yield Answer(row, "wrong", write(with_turn([own[:-1]] if own[1:] else [])))
    yield Answer(row, "wrong", write(with_turn([[*own[:-1], _map(own[-1], _spoil_first)]])))
    yield Answer(row, "wrong", write(with_turn([own, own])))
    yield Answer(row, "wrong", write(with_turn([[_map(call, _drop_first) for call in own]])))
    yield Answer(row, "wrong", write([[own] for _ in gold]))
    yield Answer(row, "wrong", write(with_turn([[{"mkdir": {"dir_name": "zz"}}], own])))
    yield Answer(row, "empty", [[""] for _ in gold])
    yield Answer(row, "cut off", write(with_turn([own]))[:full])
    yield Answer(row, "cut off", write(with_turn([own] * 21))[: full + 1])
    broken = write(with_turn([own]))
    broken[full].insert(0, "[cd(" if mode == "prompt" else [("cd", '{"folder": ')])
    yield Answer(row, "badly formatted", [*broken[:full], broken[full][:1], *broken[full + 1 :]])
    for name, arguments, explained in (
        ("cd(folder='x') or pwd", "{}", "code in a name"),
        ("len", '{"obj": "abc"}', "builtin"),
        ("echo", '{"content": "see cd(1)"}', "call in a text"),
        ("power", '{"base": 9, "exponent": 100000}', ""),
        ("__class__", "{}", ""),
    ):
        if mode == "fc":
            turns = write(with_turn([own]))
            turns[full].insert(0, [(name, arguments)])
            yield Answer(row, "hostile", turns, explained)


def to_items(answer: Answer, mode: str) -> list[JsonObject]:
    """An answer as items of a response."""
    found: list[JsonObject] = []
    for step in (step for turn in answer.turns for step in turn):
        if isinstance(step, str):
            found.append(message_item(step))
        else:
            found += [
                function_call_item(name, text, f"c{n}") for n, (name, text) in enumerate(step)
            ]
        found.append(NEXT)
    return found[:-1]


def to_result(answer: Answer) -> Any:
    """An answer as its evaluator takes it."""
    turns = [
        [step if isinstance(step, str) else [dict([call]) for call in step] for step in turn]
        for turn in answer.turns
    ]
    return turns if answer.row["kind"] == "multi_turn" else turns[0][0]


def ask_peer(python: str, answers: dict[str, list[Answer]]) -> dict[str, list[Any]]:
    given = {
        mode: [
            {
                **{"id": each.row["id"], "category": each.row["category"]},
                "result": to_result(each),
            }
            for each in own
        ]
        for mode, own in answers.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "given.json", Path(folder) / "found.json"
        source.write_text(json.dumps(given))
        subprocess.run([python, CHILD, source, target], check=True, stdout=subprocess.DEVNULL)
        return json.loads(target.read_text())


def compare_prompts(mode: str, answers: list[Answer], theirs: list[Any]) -> int:
    """Print the rows whose tools or first messages differ; returns their number. What a function
    returns stands in our descriptions, and in a field of its own there."""
    differing = dict[str, tuple[Any, Any]]()
    for answer, asked in zip(answers, theirs, strict=True):
        params = answer.row["responses_create_params"]
        own = params.get("tools", []) if mode == "fc" else params["input"]
        for tool in asked if mode == "fc" else ():
            if (response := tool.pop("response", None)) is not None:
                shown = json.dumps(response)
                tool["description"] += f" The response field has the following schema: {shown}"
        if own != asked:
            differing[answer.row["id"]] = own, asked
    rows = len({answer.row["id"] for answer in answers})
    print(f"  {'tools' if mode == 'fc' else 'prompts'} of {rows} rows, {len(differing)} differ")
    for name, (own, asked) in [*differing.items()][:2]:
        print(f"    {name}\n    ours:   {own!r:.900}\n    theirs: {asked!r:.900}")
    return len(differing)


def compare(mode: str, answers: list[Answer], own: list[bool], theirs: list[Any]) -> int:
    """Print the differences by kind; returns the number of those without a reason."""
    kinds = Counter(answer.kind for answer in answers)
    print(
        f"{mode}: {len(answers)} answers ({', '.join(f'{n} {kind}' for kind, n in kinds.items())})"
    )
    print(f"  {sum(own)} right here, {sum(each is True for each in theirs)} right there")
    reasons, left = Counter[str](), 0
    for answer, one, other in zip(answers, own, theirs, strict=True):
        if one == other or (isinstance(other, str) and not one):
            reasons["crash"] += isinstance(other, str)
        elif answer.explained:
            reasons[answer.explained] += 1
        else:
            left += 1
            text = shorten(json.dumps(answer.turns), 200, 80)
            print(f"  {answer.row['id']} {answer.kind}: {one} here, {other} there: {text}")
    for reason, number in reasons.items():
        if number:
            print(f"  {number}: {EXPLAINED[reason]}")
    return left


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
