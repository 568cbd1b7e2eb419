"""inspect: multiple choice, one turn, the boxed letter against the row's."""

import json
import os
import re

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import CORRECT, INCORRECT, Score, accuracy, scorer
from inspect_ai.solver import generate

BOXED = re.compile(r"\\boxed\{([A-D])\}")


@scorer(metrics=[accuracy()])
def boxed():
    async def score(state, target):
        found = BOXED.findall(state.output.completion)
        is_right = bool(found) and found[-1] == target.text
        return Score(value=CORRECT if is_right else INCORRECT)

    return score


@task
def multiple_choice() -> Task:
    samples = []
    with open(os.environ["BENCH_ROWS"]) as stream:
        for line in stream:
            row = json.loads(line)
            prompt = row["responses_create_params"]["input"][0]["content"]
            samples.append(Sample(input=prompt, target=row["expected_answer"]))
    return Task(dataset=MemoryDataset(samples), solver=generate(), scorer=boxed())
