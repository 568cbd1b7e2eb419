"""What NeMo Gym asks and how it scores; runs in its environment.

Its verifier of LiveCodeBench is compared elsewhere.
"""

import __future__

import ast
import json
import sys
import tempfile
from collections import Counter
from importlib.metadata import files
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import yaml
from imitated_judge import reply

PROMPT = "benchmarks/prompts/eval/livecodebench/default_reasoning.yaml"

JUDGE = "resources_servers/arena_judge/prompts"


def answer(name, rows, asked, shots):
    return ANSWERERS[name](rows, asked)


def locate(file):
    return next(each.locate() for each in files("nemo-gym") if str(each) == file)


def load(file):
    spec = spec_from_file_location(Path(file).stem, locate(file))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_alone(file):
    """The names of a server's module without its framework, which is heavy: classes have no base.

    Imports of NeMo Gym are left out, and annotations are not evaluated."""
    tree = ast.parse(locate(file).read_text())
    tree.body = [each for each in tree.body if not is_of_framework(each)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.bases = []
    flags = __future__.annotations.compiler_flag
    names = {"__name__": Path(file).stem}
    exec(compile(tree, file, "exec", flags=flags, dont_inherit=True), names)
    return SimpleNamespace(**names)


def is_of_framework(node):
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nemo_gym")


def stand_in(name, **functions):
    """Context in which a module is in the place of one that would download."""
    module = ModuleType(name)
    vars(module).update(functions)
    return patch.dict(sys.modules, {name: module})


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def answer_livecodebench(rows, asked):
    module = load("benchmarks/livecodebench/prepare_utils.py")
    hub = stand_in("datasets", load_dataset=lambda *_, **__: rows)
    with hub, tempfile.TemporaryDirectory() as folder:
        found = read(module.prepare_from_hf_raw(Path(folder) / "rows.jsonl", "release_v6"))
    prompt = yaml.safe_load(locate(PROMPT).read_text())
    tests = [row["verifier_metadata"]["unit_tests"] for row in found]
    return {
        "prompts": [prompt["user"].format(**row) for row in found],
        "systems": [prompt["system"]] * len(found),
        "tests": tests,
        "verdicts": [],
    }


def answer_mrcr(rows, asked):
    encoding = SimpleNamespace(encode=lambda text, **_: text.split())
    words = stand_in("tiktoken", get_encoding=lambda _: encoding)
    hub = stand_in("datasets", load_dataset=lambda *_, **__: rows)
    with hub, words, tempfile.TemporaryDirectory() as folder:
        module = load("benchmarks/mrcr/prepare.py")
        found = read(module.prepare(output_fpath=Path(folder) / "rows.jsonl"))
    grade = load_alone("resources_servers/mrcr/app.py")._grade
    keys = "expected_answer", "random_string_to_prepend"
    return {
        "prompts": [row["responses_create_params"]["input"] for row in found],
        "verdicts": [grade(text.strip(), *(found[at][key] for key in keys)) for at, text in asked],
    }


def answer_arena_hard(rows, asked):
    module = load("benchmarks/arena_hard_v2/prepare.py")
    names = {
        "question": module.URL_QUESTIONS,
        "model_answer/o3-mini-2025-01-31": module.URL_BASELINE_HARD_PROMPT,
        "model_answer/gemini-2.0-flash-001": module.URL_BASELINE_CREATIVE_WRITING,
    }

    def write(url, path):
        lines = [json.dumps(row) + "\n" for row in rows if names[row["part"]] == url]
        Path(path).write_text("".join(lines))

    with tempfile.TemporaryDirectory() as folder:
        module.DATA_DIR, module.OUTPUT_FPATH = Path(folder), Path(folder) / "rows.jsonl"
        with patch("urllib.request.urlretrieve", write):
            found = read(module.prepare())
    server = load_alone("resources_servers/arena_judge/app.py").ArenaJudgeServer
    prompts = {
        "hard_prompt": yaml.safe_load(locate(f"{JUDGE}/arena.yaml").read_text()),
        "creative_writing": yaml.safe_load(locate(f"{JUDGE}/arena_creative.yaml").read_text()),
    }

    def judge(row, one, two):
        fill = {"question": row["question"], "answer_1": one, "answer_2": two}
        text = prompts[row["category"]]["user"].format_map(fill)
        return server._parse_verdict(reply("arena_hard_v2", text))

    pairs = []
    for at, text in asked:
        row, baseline = found[at], found[at]["baseline_answer"]
        pairs.append([judge(row, text, baseline), judge(row, baseline, text)])
    made = server()
    made.config = SimpleNamespace(arena_elo_bootstrap_rounds=2, arena_elo_bootstrap_seed=42)
    scored = made._aggregate_arena_elo(pairs)
    return {
        "prompts": [row["question"] for row in found],
        "verdicts": [float(first in ("A>>B", "A>B")) for first, _ in pairs],
        "figures": {"win_rate_any_style": scored["score"] / 100},
    }


def answer_reasoning_gym(rows, asked):
    made = load("resources_servers/reasoning_gym/scripts/create_dataset.py")
    sizes = Counter(row["metadata"]["source_dataset"] for row in rows)
    found = [
        row
        for family, size in sizes.items()
        for row in made.create_single_task_dataset(family, size, 42)
    ]
    server = load_alone("resources_servers/reasoning_gym/app.py").ReasoningGymResourcesServer()

    def score(row, text):
        part = SimpleNamespace(type="output_text", text=text)
        items = [SimpleNamespace(type="message", content=[part])] if text else []
        given = server._extract_answer_from_response(SimpleNamespace(output=items))
        entry = {name: row[name] for name in ("question", "answer", "metadata")}
        try:
            scorer = made.reasoning_gym.get_score_answer_fn(row["metadata"]["source_dataset"])
            return float(scorer(answer=given, entry=entry))
        except Exception:
            return 0.0

    return {
        "prompts": [row["responses_create_params"]["input"] for row in found],
        "verdicts": [score(found[at], text) for at, text in asked],
    }


ANSWERERS = {
    "arena_hard_v2": answer_arena_hard,
    "livecodebench": answer_livecodebench,
    "mrcr": answer_mrcr,
    "reasoning_gym": answer_reasoning_gym,
}
