"""Runs in an environment of inspect_evals: its prompts of rows.

Reads `{benchmark: [row, …]}` and writes `{benchmark: [prompt, …]}`. What inspect_evals needs to
download datasets is not there and replaced: only the functions that make samples are called.
"""

import json
import sys
from importlib import import_module

from replaced_packages import replace

MISSING = ("inspect_evals_utils",)


def main(source, target):
    replace(*MISSING)
    with open(source) as stream:
        given = json.load(stream)
    choice = import_module("inspect_ai.solver._multiple_choice")
    state = import_module("inspect_ai.solver._task_state")

    def evals(name):
        return import_module(f"inspect_evals.{name}.{name}")

    def ask(sample, template):
        choices = state.Choices(sample.choices)
        return choice.prompt(question=str(sample.input), choices=choices, template=template)

    short, long = choice.SINGLE_ANSWER_TEMPLATE, choice.SINGLE_ANSWER_TEMPLATE_COT
    makers = {
        "mmlu_pro": lambda row: ask(
            evals("mmlu_pro").record_to_sample(row), evals("mmlu_pro").USER_PROMPT_TEMPLATE
        ),
        "mmlu": lambda row: ask(evals("mmlu").record_to_sample_mmlu(row), short),
        "arc_challenge": lambda row: ask(evals("arc").record_to_sample(row), short),
        "commonsense_qa": lambda row: ask(evals("commonsense_qa").record_to_sample(row), short),
        "gpqa_diamond": lambda row: ask(evals("gpqa").record_to_sample(row), long),
        "ifeval": lambda row: evals("ifeval").record_to_sample(row).input,
        "human_eval": lambda row: evals("humaneval").record_to_sample()(row).input,
    }
    prompts = {name: [makers[name](row) for row in rows] for name, rows in given.items()}
    with open(target, "w") as stream:
        json.dump(prompts, stream)


main(*sys.argv[1:])
