"""Rollouts of NeMo Gym's rows, collected here with NeMo Gym's own YAML files.

The model is an endpoint of this process. To each row it gives ten answers in turn: the one that
NeMo Gym's own `example_rollouts.jsonl` has recorded, right ones in several forms, and wrong ones.
"""

import json
import math
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..nemo_gym import MODEL, programs, work
from ..replayed_model import (
    Json,
    Player,
    Turns,
    as_items,
    is_said,
    message,
    read_turns,
    split,
)

ROLLOUTS = 50
"""At least so many of each environment."""

Texts = Callable[[Json], list[str]]


def choose(row: Json) -> list[str]:
    letter = row["expected_answer"]
    other = "B" if letter == "A" else "A"
    forms = (r"\boxed{%s}", r"It is \boxed{\text{%s}}.", r"\boxed{(%s)}", "Answer: %s")
    return [form % each for form in forms for each in (letter, other)] + [""]


def choose_by_line(row: Json) -> list[str]:
    letter = row["expected_answer"]
    other = "B" if letter == "A" else "A"
    forms = ("Answer: %s", "**Answer:** %s", "answer: (%s)", r"\boxed{%s}")
    return [form % each for form in forms for each in (letter, other)] + ["I do not know."]


def calculate(row: Json) -> list[str]:
    gold = str(row["expected_answer"])
    forms = (r"So it is $\boxed{%s}$.", r"\boxed{%s}", "The answer is %s.", "%s")
    return [form % each for form in forms for each in (gold, "987654321")] + [""]


def reason(row: Json) -> list[str]:
    gold = str(row["answer"])
    forms = ("%s", "<answer>%s</answer>", "Hm.\n<answer> %s </answer>", "The answer is %s.")
    return [form % each for form in forms for each in (gold, gold[::-1])] + [""]


def program(row: Json) -> list[str]:
    outputs = row["verifier_metadata"]["unit_tests"]["outputs"]
    inputs = row["verifier_metadata"]["unit_tests"]["inputs"]
    table = dict(zip(inputs, outputs, strict=True))
    knows = f"import sys\nprint({table!r}[sys.stdin.read()], end='')"
    first = f"import sys\nprint({outputs[0]!r}, end='')"
    codes = (knows, first, "raise SystemExit(3)", "def f(:", f"{knows}\nprint()")
    fences = ("```python\n%s\n```", "Here:\n```python\n%s\n```\nDone.")
    return [fence % code for code in codes for fence in fences]


def follow(row: Json) -> list[str]:
    said = (
        "**Title**\n\nA text, with a few words; and then some more.\n\n* One.\n* Two.\n\nP.S. Bye."
    )
    quoted = f'"{said}"'
    return [said, said.lower(), said.upper(), quoted, said.replace(",", ""), "", f"<<{said}>>"]


GSM8K = (
    ("Anna has 3 bags of 14 apples and eats 5 of the apples. How many are left?", 37),
    ("A train of 12 cars has 48 seats a car. How many seats has it?", 576),
    ("Tom reads 17 pages a day. How many pages does he read in two weeks?", 238),
    ("A shirt costs $40 and is sold at a quarter less. What does it cost now?", 30),
    ("Eight workers build 20 walls each. How many walls are there?", 160),
)
"""Questions and answers in the form that `prepare.py` gives those of GSM8K, which it downloads."""


def read_rows(name: str) -> Callable[[Path], list[Json]]:
    """The example rows of a server."""

    def read(gym: Path) -> list[Json]:
        path = gym / f"resources_servers/{name}/data/example.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    return read


def as_gpqa(gym: Path) -> list[Json]:
    """Rows of multiple choice in the form that GPQA's `prepare.py` gives its rows."""
    found = []
    for row in read_rows("mcqa")(gym):
        options = "\n".join(f"{k}: {v}" for each in row["options"] for k, v in each.items())
        asked = as_items(row["responses_create_params"]["input"])[-1]["content"]
        question = asked.partition("\nA: ")[0]
        fields = {name: row[name] for name in ("options", "expected_answer")}
        found.append({"question": question, "problem": f"{question}\n{options}", **fields})
    return found


def as_ifeval(gym: Path) -> list[Json]:
    """Rows of instructions in the form that IFEval's `prepare.py` gives its rows."""
    fields = ("prompt", "instruction_id_list", "kwargs")
    return [
        {
            "id": number,
            "responses_create_params": row["responses_create_params"],
            "verifier_metadata": {**{name: row[name] for name in fields}, "grading_mode": "binary"},
        }
        for number, row in enumerate(read_rows("instruction_following")(gym))
    ]


class Environment(NamedTuple):
    """A YAML of NeMo Gym, and what is collected with it."""

    config: str
    agent: str
    """The environment server that its rows run with."""
    server: str
    """Our verifier."""
    theirs: str
    """The folder of NeMo Gym's verifier."""
    rows: Callable[[Path], list[Json]]
    texts: Texts | None
    """What the model says to a row; None if it calls tools."""
    prompt: str = ""
    settings: Json | None = None
    """Keys that the YAML gives NeMo Gym's verifier."""
    numbers: tuple[str, ...] = ()
    """Fields of a row that NeMo Gym's verifier refuses unless they are text."""

    def case(self, one: "Collected") -> Json:
        """What NeMo Gym's verifier is asked."""
        row = {**one.row, **{name: str(one.row[name]) for name in self.numbers}}
        return {
            "server": self.server,
            "row": row,
            "response": one.response,
            "settings": self.settings,
        }


def of_server(name: str, texts: Texts | None, ours: str = "", **more: Any) -> Environment:
    config = f"resources_servers/{name}/configs/{name}.yaml"
    agent, ours = f"{name}_environment_server", ours or name
    return Environment(config, agent, ours, name, read_rows(name), texts, **more)


def as_gsm8k(gym: Path) -> list[Json]:
    return [{"question": asked, "expected_answer": answer} for asked, answer in GSM8K]


ENVIRONMENTS = {
    "mcqa": of_server("mcqa", choose),
    "math_with_judge": of_server("math_with_judge", calculate, "math_with_verify"),
    "reasoning_gym": of_server("reasoning_gym", reason),
    "code_gen": of_server("code_gen", program),
    "workplace_assistant": of_server("workplace_assistant", None),
    "gsm8k": Environment(
        "benchmarks/gsm8k/config.yaml",
        "gsm8k_math_with_judge_environment_server",
        "math_with_verify",
        "math_with_judge",
        as_gsm8k,
        calculate,
        "benchmarks/prompts/generic/math.yaml",
        numbers=("expected_answer",),
    ),
    "gpqa": Environment(
        "benchmarks/gpqa/config.yaml",
        "gpqa_mcqa_environment_server",
        "mcqa",
        "mcqa",
        as_gpqa,
        choose_by_line,
        "benchmarks/prompts/eval/aai/mcq-4choices.yaml",
        {"grading_mode": "lenient_answer_colon_md"},
    ),
    "ifeval": Environment(
        "benchmarks/ifeval/config.yaml",
        "ifeval_instruction_following_environment_server",
        "instruction_following",
        "instruction_following",
        as_ifeval,
        follow,
    ),
}


class Varied(Player):
    """Gives each prompt its answers in turn. A trajectory with calls is known by their ids."""

    def __init__(self, answers: dict[str, list[Turns]]) -> None:
        super().__init__({})
        self.answers = answers
        self.asked: Counter[str] = Counter()

    def answer(self, body: Json) -> Json:
        items = as_items(body["input"])
        prompt = json.dumps([each for each in items if not is_said(each)], ensure_ascii=False)
        needle = next(text for text in self.answers if _quote(text) in prompt)
        said = split(items)
        if said:
            number = int(said[0][0]["call_id"].partition("_")[0])
        else:
            number = self.asked[needle]
            self.asked[needle] += 1
        turns = self.answers[needle][number % len(self.answers[needle])]
        named = [
            [
                each
                if "call_id" not in each
                else {**each, "call_id": f"{number}_{each['call_id']}"}
                for each in turn
            ]
            for turn in turns
        ]
        return self.reply(named, said)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def needle_of(row: Json) -> str:
    """The text that a row's prompt has and no other's."""
    params = row.get("responses_create_params")
    if params is None:
        return str(row["question"])
    texts = [each["content"] for each in as_items(params["input"]) if each["role"] == "user"]
    last = texts[-1]
    return last if isinstance(last, str) else "".join(part["text"] for part in last)


def find_answers(environment: Environment, rows: list[Json], gym: Path) -> dict[str, list[Turns]]:
    folder = gym / "resources_servers" / environment.theirs / "data"
    recorded = dict(_read_recorded(folder))
    found = {}
    for row in rows:
        needle = needle_of(row)
        if environment.texts:
            made: list[Turns] = [[[message(text)]] for text in environment.texts(row)]
        else:
            calls = work(row)
            made = [calls, calls[-1:], calls[:1] + calls[-1:], calls[:-1] + calls[:1] + calls[-1:]]
        found[needle] = [*recorded.get(needle, []), *made]
    return found


def _read_recorded(folder: Path) -> Iterator[tuple[str, list[Turns]]]:
    for start, turns in read_turns(folder / "example_rollouts.jsonl").items():
        yield str(json.loads(start)[-1]), [turns]


class Collected(NamedTuple):
    """A row, the response of its rollout, and the reward."""

    row: Json
    response: Json
    reward: float

    @property
    def text(self) -> str:
        """The last message."""
        parts = [
            part["text"]
            for item in self.response["output"][-1:]
            if item["type"] == "message"
            for part in item["content"]
        ]
        return "".join(parts)


Explains = Callable[[Collected, float | str], bool]
"""Whether a reason holds for a rollout and for NeMo Gym's reward, or the error in place of it."""

MATHS: dict[str, Explains] = {
    "only a box is an answer there": lambda one, other: other == 0 and r"\boxed{" not in one.text,
    "there two formulas with powers of 2016 and 4033 are not found equal": lambda one, other: (
        other == 0 and "4033" in one.text and "2016" in str(one.row["expected_answer"])
    ),
}

INSTRUCTIONS: dict[str, Explains] = {
    "an empty response follows no instruction here": lambda one, other: not one.text,
    "nltk's tables are missing there": lambda one, other: "punkt_tab" in str(other),
    "a dash ends a word here": lambda one, other: other == 0 and "\u2014" in one.text,
}

EXPLANATIONS: dict[str, dict[str, Explains]] = {
    "math_with_judge": MATHS,
    "gsm8k": MATHS,
    "ifeval": INSTRUCTIONS,
}
"""Why a reward may differ, by environment; the READMEs of our servers say the same."""


def explain(name: str, one: Collected, other: float | str) -> str | None:
    """Why NeMo Gym's reward is another one; None if no reason is known."""
    reasons = EXPLANATIONS.get(name, {}).items()
    return next((about for about, holds in reasons if holds(one, other)), None)


def collect(environment: Environment, gym: Path) -> list[Collected]:
    """At least `ROLLOUTS` rollouts, made by `ng_collect_rollouts` in a process of its own."""
    rows = environment.rows(gym)
    player = Varied(find_answers(environment, rows, gym))
    with tempfile.TemporaryDirectory() as text, player.serve() as url:
        place = Path(text)
        (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = [
            f"+config_paths=[{environment.config},{MODEL}]",
            f"+nemo_gym={gym}",
            f"+agent_name={environment.agent}",
            "+input_jsonl_fpath=rows.jsonl",
            "+output_jsonl_fpath=rollouts.jsonl",
            f"+num_repeats={math.ceil(ROLLOUTS / len(rows))}",
            f"+policy_base_url={url}",
            "+policy_api_key=none",
            "+policy_model_name=player",
        ]
        if environment.prompt:
            words.append(f"+prompt_config={environment.prompt}")
        done = subprocess.run(
            [programs("ng_collect_rollouts"), *words], cwd=place, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"{environment.config}: {done.stderr[-2000:]}")
        lines = (place / "rollouts.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [Collected(rows[one["_ng_task_index"]], one["response"], one["reward"]) for one in found]
