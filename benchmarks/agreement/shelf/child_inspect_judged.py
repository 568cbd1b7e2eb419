"""What inspect_evals asks and how it scores with a judge, which is imitated; runs in its
environment.
"""

import asyncio
import sys
from importlib import import_module
from types import SimpleNamespace

from imitated_judge import reply
from inspect_states import make_states
from replaced_packages import replace

replace("inspect_evals_utils", "tiktoken")


class Prompt(SimpleNamespace):
    """What the package that is not on the registry has under this name: a title and a text."""


sys.modules["inspect_evals_utils.prompts"] = SimpleNamespace(Prompt=Prompt)
import_module("inspect_evals_utils.scorers").NO_RESPONSE = "no_response"

scorers = import_module("inspect_ai.scorer")
models = import_module("inspect_ai.model")
datasets = import_module("inspect_ai.dataset")


def answer(name, rows, asked, shots):
    make, scorer, read, aggregate = MAKERS[name]()
    samples = [make(row) for row in rows]
    scores = asyncio.run(score_all(samples, scorer, asked))
    found = [scorers.SampleScore(score=each) for each in scores]
    return {
        "prompts": [ask(sample) for sample in samples],
        "verdicts": [float(read(each.value)) for each in scores],
        "figures": aggregate(found),
    }


def ask(sample):
    if isinstance(sample.input, str):
        return sample.input
    messages = [(each.role, each.text) for each in sample.input]
    if messages[0][0] == "system":
        return messages[-1][1]
    return [{"role": role, "content": text} for role, text in messages]


async def score_all(samples, scorer, asked):
    return [await scorer(state, target) for state, target in make_states(samples, asked)]


class ImitatedJudge:
    """Replies by what the question is."""

    def __init__(self, name):
        self.name = name

    async def generate(self, input, config=None, cache=False):
        return SimpleNamespace(completion=reply(self.name, input))


def make_simple_qa():
    data = import_module("inspect_evals.simpleqa.dataset")
    module = import_module("inspect_evals.simpleqa.scorer")
    module.get_model = lambda **_: ImitatedJudge("simple_qa")

    def aggregate(scores):
        found = module.simpleqa_metric()(scores)
        names = ("correct", "correct_given_attempted", "not_attempted")
        return {"f1": found["f_score"], **{name: found[name] for name in names}}

    return (
        data.simpleqa_record_to_sample,
        module.simpleqa_scorer(),
        lambda value: value["correct"],
        aggregate,
    )


def make_hle():
    data = import_module("inspect_evals.hle.dataset")
    module = import_module("inspect_evals.hle.scorers")
    metrics = import_module("inspect_evals.hle.metrics")

    def respond(messages, *_):
        text = reply("hle", messages[-1].text)
        return models.ModelOutput.from_content("mockllm/model", text)

    judge = models.get_model("mockllm/model", custom_outputs=respond)
    module._resolve_grader = lambda _: judge
    scorer = module.regex_judge("regex_judge_template", "regex_judge_instructions")

    def aggregate(scores):
        return {
            "accuracy": metrics.accuracy()(scores),
            "calibration_error": metrics.cerr()(scores),
        }

    return data.record_to_sample, scorer, lambda value: value["score"] in ("C", 1), aggregate


def make_health_bench():
    data = import_module("inspect_evals.healthbench.dataset")
    module = import_module("inspect_evals.healthbench.scorer")
    module.get_model = lambda *_: ImitatedJudge("health_bench")

    def aggregate(scores):
        return {"points": module.healthbench_bootstrapped(10, False)(scores)["bootstrap_score"]}

    scorer = module.healthbench_scorer(include_subset_scores=False)
    return data.record_to_sample, scorer, lambda value: value["healthbench_score"], aggregate


MAKERS = {"simple_qa": make_simple_qa, "hle": make_hle, "health_bench": make_health_bench}
