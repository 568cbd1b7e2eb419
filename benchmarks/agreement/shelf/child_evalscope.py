"""What evalscope asks and how it scores; runs in its environment."""

from copy import deepcopy

from evalscope.api.evaluator import TaskState
from evalscope.api.model import ModelOutput
from evalscope.api.registry import get_benchmark
from evalscope.config import TaskConfig
from evalscope.metrics.math import parser

parser.isolation_available = lambda: False


def answer(name, rows, asked, shots):
    config = TaskConfig(dataset_args={name: {"few_shot_num": shots, "shuffle_choices": False}})
    adapter = get_benchmark(name, config)
    adapter.few_shot_num = shots
    type(adapter).use_sandbox = True
    adapter.execute_code_in_sandbox = refuse
    samples = [make_sample(adapter, row) for row in rows]
    prompts = [ask(adapter, sample) for sample in samples]
    scores = [score(adapter, make_sample(adapter, rows[at]), text) for at, text in asked]
    verdicts = [each if isinstance(each, str) else float(each.main_value or 0) for each in scores]
    counts = [len(rows[at].get("instruction_id_list", ())) for at, _ in asked]
    return {"prompts": prompts, "verdicts": verdicts, "figures": add_up(scores, counts)}


def add_up(scores, counts):
    """The figures of instructions, where a row has a number of them. A response without a score,
    on which a check has failed, follows none."""
    pairs = [pair for pair in zip(scores, counts, strict=True) if pair[1]]
    names = {name for score, _ in pairs for name in score.value}
    weights = {name: [one if "inst" in name else 1 for _, one in pairs] for name in names}
    return {
        name: sum(
            one.value.get(name, 0) * weight for (one, _), weight in zip(pairs, own, strict=True)
        )
        / sum(own)
        for name, own in weights.items()
    }


class Program(Exception):
    """What would run. The other side runs it, in a sandbox."""


def refuse(code, **_):
    raise Program(code)


def make_sample(adapter, row):
    adapter.current_subset_name = row.get("part", "").replace("-", "_")
    sample = adapter.record_to_sample(deepcopy(row))
    sample.id = sample.group_id = 0
    return sample


def ask(adapter, sample):
    if isinstance(sample.input, str):
        return adapter.process_sample_input(sample, subset="default")
    content = sample.input[-1].content
    return content if isinstance(content, str) else content[0].text


def score(adapter, sample, text):
    if isinstance(sample.input, str):
        sample.input = adapter.process_sample_str_input(sample, subset="default")
    output = ModelOutput.from_content(model="m", content=text)
    state = TaskState(model="m", sample=sample, output=output, completed=True)
    filtered = adapter.filter_prediction(text, state)
    try:
        return adapter.match_score(text, filtered, state.target, state)
    except Program as program:
        return str(program)
