"""Write the tiny model's task files: numbers that it never saw, in the phrasings that it knows.

    python responses_api_models/local_model/training/tasks.py

Needs nothing but Python. The same seed gives the same files. Rows are those of `math_with_verify`,
`mcqa` and `calculator`; `level` is the number of digits of a row's largest number.
"""

import itertools
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from problems import (
    CHOICE,
    LAYOUTS,
    LETTERS,
    SKILLS,
    Problem,
    Skill,
    choice,
    draw,
    is_held_out,
)

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(__file__).parent.parent / "data"

NUM_ROWS = 512
"""Rows of each skill: a mean reward of 0.7 is then known to ± 0.04."""

NUM_DEMO_ROWS = 32
"""Rows of each skill in the demo mix."""

LEVELS: dict[Skill, tuple[int, ...]] = {
    "arithmetic": (1, 2, 2, 2, 2, 3, 3, 3),
    "multiple_choice": (1, 2, 2, 3, 3),
    "tool": (1, 2, 2, 3, 3),
}
"""In turn, so that the first rows of a file are like all of it."""

AGENTS: dict[Skill, str] = {
    "arithmetic": "math_with_verify_simple_agent",
    "multiple_choice": "mcqa_simple_agent",
    "tool": "calculator_simple_agent",
}

Row = dict[str, Any]


def main() -> None:
    rows = {skill: list(itertools.islice(_rows(skill), NUM_ROWS)) for skill in SKILLS}
    for skill in SKILLS:
        write(DATA / f"{skill}.jsonl", rows[skill])
    first = [rows[skill][:NUM_DEMO_ROWS] for skill in SKILLS]
    write(DATA / "demo.jsonl", itertools.chain(*zip(*first, strict=True)))
    write(ROOT / "resources_servers/mcqa/data/largest_number.jsonl", _largest_number(96))


def _rows(skill: Skill) -> Iterator[Row]:
    """Rows of one skill without end, all different."""
    rng = random.Random(skill)
    seen: set[str] = set()
    for level in itertools.cycle(LEVELS[skill]):
        problem = draw(rng, skill, held_out=True, levels=(level,))
        while problem.text in seen:
            problem = draw(rng, skill, held_out=True, levels=(level,))
        seen.add(problem.text)
        yield {"agent_ref": {"name": AGENTS[skill]}, **row(problem)}


def row(problem: Problem) -> Row:
    asked: Row = {
        "responses_create_params": {"input": [{"role": "user", "content": problem.text}]},
        "level": problem.level,
    }
    match problem.skill:
        case "arithmetic":
            asked |= {"question": problem.question, "expected_answer": problem.value}
            asked |= {"gold_output": problem.response}
        case "multiple_choice":
            options = zip(LETTERS, problem.numbers, strict=True)
            asked |= {"options": [{letter: str(number)} for letter, number in options]}
            if not problem.is_boxed:
                asked |= {"grading_mode": "lenient_answer_colon"}
            asked |= {"expected_answer": problem.value, "gold_output": problem.response}
        case "tool":
            asked |= {"call": dict(zip("ab", problem.numbers, strict=True))}
            asked |= {"expected_answer": int(problem.value)}
            asked |= {"gold_output": problem.answer(problem.value)}
    return asked


def _largest_number(num_rows: int) -> Iterator[Row]:
    """The plainest multiple choice: half of it below 100, half below 1,000."""
    rng = random.Random("largest_number")
    for index in range(num_rows):
        numbers: tuple[int, ...] = ()
        while not numbers or not is_held_out(numbers):
            numbers = tuple(rng.sample(range(1000 if index % 2 else 100), 4))
        question = CHOICE[0].format(which="largest")
        yield row(choice(question, LAYOUTS[0], numbers, is_largest=True, is_boxed=False))


def write(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))


if __name__ == "__main__":
    main()
