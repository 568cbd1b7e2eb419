"""verifiers 0.1: multiple choice, one turn, the boxed letter against the row's."""

import json
import os
import re

import verifiers as vf
from datasets import Dataset

BOXED = re.compile(r"\\boxed\{([A-D])\}")


def load_environment() -> vf.Environment:
    rows = []
    with open(os.environ["BENCH_ROWS"]) as stream:
        for line in stream:
            row = json.loads(line)
            prompt = row["responses_create_params"]["input"]
            rows.append({"prompt": prompt, "answer": row["expected_answer"]})

    def is_right(completion, answer) -> float:
        found = BOXED.findall(completion[-1]["content"])
        return float(bool(found) and found[-1] == answer)

    return vf.SingleTurnEnv(
        eval_dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[is_right])
    )
