"""Ten more verifiers with a hole, of other classes, written after the audit. It was not tuned to
them, but for `file_named_by_answer`."""

from typing import Any

from planted import HEAD as HEAD
from planted import JUDGE, SUMS, TEXT, ask

VERIFIERS = {
    "first_words": TEXT + "        return float(said.lower().startswith('it is'))\n",
    "bag_of_letters": TEXT
    + "        return float(sorted(numbers(said)[-1:] and numbers(said)[-1]) == sorted(truth))\n",
    "integer_part": TEXT
    + """
        found = numbers(said)
        return float(bool(found) and int(float(found[-1])) == int(float(truth)))
""",
    "magnitude": TEXT
    + """
        found = numbers(said)
        return float(bool(found) and abs(float(found[-1])) == abs(float(truth)))
""",
    "wide_tolerance": TEXT
    + """
        found = numbers(said)
        return float(bool(found) and abs(float(found[-1]) - float(truth)) <= 0.5 * float(truth))
""",
    "calls_counted": """
    @tool
    async def think(self) -> str:
        "Think."
        return "ok"

    async def verify(self, task, response):
        calls = [each for each in response["output"] if each["type"] == "function_call"]
        return float(len(calls) > 0 or output_text(response) == task["gold_output"])
""",
    "reasoning_counts": """
    async def verify(self, task, response):
        return float(task["expected_answer"] in numbers(json.dumps(response["output"])))
""",
    "judge_default_is_good": JUDGE
    + """
    async def verify(self, task, response):
        said = output_text(response)
        said = await self.ask("Is this wrong? Say WRONG if so. " + json.dumps(said))
        return float("WRONG" not in said)
""",
    "file_named_by_answer": TEXT
    + """
        name = re.findall(r"[\\w/.]+", said)[-1:] or ["none"]
        path = Path(tempfile.gettempdir()) / name[0]
        held = open(path).read() if path.is_file() else name[0]
        return float(held == truth)
""",
    "any_of_many_tries": TEXT
    + """
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return float(any(numbers(line)[-1:] == [truth] for line in lines))
""",
}

FLAGS = {
    "first_words": "rewards no answer",
    "bag_of_letters": "rewards another value",
    "integer_part": "rewards another value",
    "magnitude": "rewards another value",
    "wide_tolerance": "rewards another value",
    "calls_counted": "rewards calls without sense",
    "reasoning_counts": "rewards a list of all options",
    "any_of_many_tries": "rewards a list of all options",
    "file_named_by_answer": "opens files that text names",
}

CONSTANT = {"judge_default_is_good"}
"""The first part of the audit flags these as `always 1`, so nothing is searched."""


def make_rows(name: str) -> list[dict[str, Any]]:
    more: dict[str, Any] = {}
    rows = [
        ask(f"What is {one}?", f"It is {truth}", expected_answer=truth, question=one)
        for truth, one in SUMS.items()
    ]
    if name == "calls_counted":
        more["tools"] = [{"type": "function", "name": "think", "parameters": {"type": "object"}}]
    for row in rows:
        row["responses_create_params"] |= more
    return rows
