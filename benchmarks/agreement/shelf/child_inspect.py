"""What inspect_evals asks and how it scores; runs in its environment."""

import asyncio
from importlib import import_module

from inspect_states import make_states
from replaced_packages import replace

replace("inspect_evals_utils")

choice = import_module("inspect_ai.solver._multiple_choice")
task_state = import_module("inspect_ai.solver._task_state")
scorers = import_module("inspect_ai.scorer")
datasets = import_module("inspect_ai.dataset")


def answer(name, rows, asked, shots):
    make, template, scorer = MAKERS[name]()
    samples = [make(row) for row in rows]
    prompts = [ask(sample, template) for sample in samples]
    verdicts = asyncio.run(score_all(samples, template, scorer, asked))
    return {"prompts": prompts, "verdicts": verdicts}


def ask(sample, template):
    if template is None:
        return str(sample.input)
    choices = task_state.Choices(sample.choices)
    return choice.prompt(question=str(sample.input), choices=choices, template=template)


async def score_all(samples, template, scorer, asked):
    found = []
    for state, target in make_states(samples, asked):
        if template is not None:
            found_letters = choice.parse_answers(state, multiple_correct=False)
            choice.set_choices_based_on_generated_response(state, found_letters)
        value = (await scorer(state, target)).value
        found.append(float(value == "C" or value == 1))
    return found


def make_truthful():
    evals = import_module("inspect_evals.truthfulqa.truthfulqa")

    def make(row):
        targets = row["mc1_targets"]
        letters = evals.labels_to_positions(targets["labels"])
        return datasets.Sample(input=row["question"], choices=targets["choices"], target=letters)

    return make, choice.SINGLE_ANSWER_TEMPLATE, scorers.choice()


def make_medical():
    evals = import_module("inspect_evals.medqa.medqa")

    def make(row):
        bigbio = {"id": "0", "question": row["question"], "choices": [*row["options"].values()]}
        return evals.record_to_sample({**bigbio, "answer": [row["answer"]]})

    return make, evals.TEMPLATE, scorers.choice()


def make_multilingual():
    evals = import_module("inspect_evals.mgsm.mgsm")

    def make(row):
        text = evals.LANG_TO_INSTRUCTIONS[row["part"]].format(prompt=row["question"])
        return datasets.Sample(input=text, target=row["answer"])

    return make, None, scorers.match(numeric=True)


MAKERS = {"truthfulqa": make_truthful, "medqa": make_medical, "mgsm": make_multilingual}
