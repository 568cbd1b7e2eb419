"""What a model or a row says is never compiled, executed or looked up outside of a sandbox.

Python's audit events tell. While a verifier judges hostile texts, no event may have their mark in
its arguments, and there may be no event that harmless texts of the same lengths do not cause too.
A sandbox is not watched: there, texts may be executed.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import OF_OTHERS, may_isolate

from rollout_kit.authoring.examination import read_rows
from rollout_kit.types import JsonObject

ROOT = Path(__file__).resolve().parents[2]
SERVERS = sorted({path.parent.name for path in ROOT.glob("resources_servers/*/app.py")} - OF_OTHERS)
HELPERS = ROOT / "tests/helpers"

MARK = "".join(random.Random(os.getpid()).choices("bcdfghjklmnpqrstvwxz", k=12))

TEXTS = [
    "MARK",
    "(pi for pi in [1]).gi_frame.f_builtins[MARK.name]",
    "__import__('MARK').system('MARK')",
    "['MARK', 2]",
    "{'MARK': 1}",
    "[['MARK']]",
    "MARK + 1",
    "3*MARK**2 + sin(MARK)",
    "\\frac{MARK}{2} + \\text{MARK}",
    "x = MARK",
    "12 + 30*(4 - MARK)",
    "{MARK} %(MARK)s ${MARK} {{MARK}} {{ ''.__class__.MARK }} {% import 'MARK' %}",
    '{"$ref": "file:///MARK", "MARK": "http://127.0.0.1/MARK"}',
    '{"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/MARK.json"}}}',
    '{"type": "string", "pattern": "^(MARK)$"}',
    '<!DOCTYPE a [<!ENTITY e SYSTEM "file:///MARK">]><a>&e;</a>',
    '<!DOCTYPE a SYSTEM "http://127.0.0.1:9/MARK"><a><MARK/></a>',
    "!!python/object/apply:os.system ['MARK']",
    "!MARK a",
    "&MARK [*MARK]",
    "a: !!python/name:MARK.system",
    "[MARK]\na = 1979-05-27\nMARK = '''x'''",
    "a,b\n=MARK(),2",
    "<action>MARK</action> <guess>MARK</guess>",
    "(?P<MARK>a)(?#MARK)\\1",
    "lambda: MARK",
    "`MARK` $(MARK) | MARK; MARK",
    "../../MARK/../MARK",
    "%s%n%xMARK",
    "\\input{MARK} \\write18{MARK}",
    "MARK\x00MARK\ufffe",
]

FORMS = [
    *("{}", "\\boxed{{{}}}", "<answer>{}</answer>", "#### {}", "The answer is {}.", "Answer: {}"),
    *("```python\n{}\n```", '{{"a": "{}"}}', "<a>{}</a>", "a: {}", 'a = "{}"'),
]

TOO_LONG = 3
"""Texts of rows are tried at so many places of a list."""


def hide(text: str) -> str:
    """The text with the mark in place of MARK."""
    return text.replace("MARK", MARK)


def calm(text: str) -> str:
    """A harmless text that is as long."""
    return ("word and " * len(text))[: len(text)]


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where texts are in a row, but for its prompt and the names that choose a scorer."""
    if isinstance(tree, str):
        yield path
    elif isinstance(tree, dict):
        for key, value in tree.items():
            if key not in ("responses_create_params", "gold_items", "source_dataset"):
                yield from places(value, (*path, key))
    elif isinstance(tree, list):
        for number, value in enumerate(tree[:TOO_LONG]):
            yield from places(value, (*path, number))


def replaced(row: JsonObject, path: tuple[Any, ...], text: str) -> JsonObject:
    copy = inside = json.loads(json.dumps(row))
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = text
    return copy


def calls(row: JsonObject, text: str) -> list[JsonObject]:
    """Calls of the row's tools, with a text for each argument."""
    found = []
    for tool in row["responses_create_params"].get("tools", [])[:TOO_LONG]:
        names = tool.get("parameters", {}).get("properties", {})
        arguments = json.dumps(dict.fromkeys(names, text))
        call = {"type": "function_call", "id": "f", "call_id": "c", "status": "completed"}
        found.append({**call, "name": tool["name"], "arguments": arguments})
    return found


def judged(
    rows: list[JsonObject], texts: list[str], forms: Sequence[str]
) -> list[tuple[JsonObject, Any]]:
    """Each text as an answer to each row, in each form, in calls of tools, and in the row."""
    pairs: list[tuple[JsonObject, Any]] = []
    for row in rows:
        gold = row.get("gold_output") or "gold"
        for text in texts:
            pairs += [(row, form.format(text)) for form in forms]
            pairs += [(row, call) for call in calls(row, text)]
            pairs += [(replaced(row, path, text), gold) for path in places(row)]
    return pairs


def generated() -> list[JsonObject]:
    """A row of each family of reasoning-gym, with its answer as gold."""
    command = [sys.executable, ROOT / "resources_servers/reasoning_gym/generate.py", "--size", "1"]
    names = {"composite", "game_of_life", "game_of_life_halting"}  # these need more to be made
    listed = subprocess.run(
        [sys.executable, "-c", "from reasoning_gym.factory import DATASETS; print(*DATASETS)"],
        capture_output=True,
        text=True,
        check=True,
    )
    families = sorted({*listed.stdout.split()} - names)
    done = subprocess.run([*command, *families], capture_output=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    return [{**row, "gold_output": f"<answer>{row['answer']}</answer>"} for row in rows]


def specify(
    name: str, rows: list[JsonObject], texts: Sequence[str] = TEXTS, forms: Sequence[str] = FORMS
) -> JsonObject:
    harmless = judged(rows, list(map(calm, texts)), forms)
    harmless += [(row, str(row.get("gold_output") or "gold")) for row in rows]
    hostile = judged(rows, list(map(hide, texts)), forms)
    return {"name": name, "settings": {}, "phases": {"harmless": harmless, "hostile": hostile}}


RENDERED = """
import importlib, json, os, sys
from pathlib import Path
from rollout_kit.serving import registry

server = registry.load("responses_api_models", "local_model")
module = importlib.import_module(server.__module__.rpartition(".")[0] + ".tokenizer")
chat = module.ChatTokenizer(Path("responses_api_models/local_model/checkpoint"))

def say(phase):
    with open(os.environ["PYTHONAUDITLOG"], "a") as log:
        log.write(json.dumps({"phase": phase}) + chr(10))

for phase, texts in json.load(sys.stdin).items():
    say(phase)
    for text in texts:
        tool = {"type": "function", "function": {"name": text, "parameters": {text: text}}}
        chat.prompt([{"role": "user", "content": text, text: text}], [tool])
say("end")
"""


def test_a_chat_template_renders_texts_as_values(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    phases = {
        "harmless": [calm(text) for text in TEXTS],
        "x hostile": [hide(text) for text in TEXTS],
    }
    logged = watch([sys.executable, "-c", RENDERED], phases, tmp_path)
    assert differences(logged, "x") == []


def watch(
    command: list[str], given: Any, folder: Path, cwd: Path = ROOT
) -> dict[str, list[tuple[str, str, bool]]]:
    """What was logged in each phase."""
    log = folder / "audit.log"
    paths = [str(HELPERS / "audit_hook"), str(ROOT), str(HELPERS)]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONAUDITLOG": str(log),
        "PYTHONAUDITMARK": MARK,
    }
    done = subprocess.run(
        command, input=json.dumps(given), env=env, cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[tuple[str, str, bool]]] = {}
    phase = "start"
    found[phase] = []
    for line in map(json.loads, log.read_text().splitlines()):
        if isinstance(line, dict):
            phase = line["phase"]
            found.setdefault(phase, [])
        else:
            found[phase].append(tuple(line))
    return found


def differences(logged: dict[str, list[tuple[str, str, bool]]], name: str) -> list[Any]:
    """Events with the mark, and events that only hostile texts have caused."""
    hostile = logged.pop(f"{name} hostile")
    logged.pop("end")
    before = {event[:2] for events in logged.values() for event in events}
    return [event for event in hostile if event[2] or event[:2] not in before]


@pytest.mark.parametrize("name", SERVERS)
def test_no_text_is_evaluated(name: str, tmp_path: Path) -> None:
    if name in ("code_gen", "reasoning_gym", "shell") and not may_isolate():
        pytest.skip("it needs a sandbox")
    rows = read_rows(ROOT / "resources_servers" / name / "data/example.jsonl")[:2]
    spec = specify(name, rows)
    if name == "reasoning_gym":  # it has many families
        spec = specify(name, generated(), TEXTS[1:8:2], ("{}", "<answer>{}</answer>"))
    if name == "shell":  # each session and each verdict starts a sandbox
        small = {**rows[0], "setup": "true", "verifier": {"kind": "command", "command": "true"}}
        spec = specify(name, [small], TEXTS[1:3], ("{}",))
    judge = [sys.executable, str(HELPERS / "judged.py")]
    assert differences(watch(judge, [spec], tmp_path), name) == []


EVALUATING = """
from rollout_kit import ResourcesServer, VerifyRequest, VerifyResponse, output_text

class Evaluating(ResourcesServer):
    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        try: found = {act}
        except Exception: found = None
        return body.scored(reward=float(found is not None))
"""

ACTS = {
    "eval": "eval(output_text(body.response))",
    "literal_eval": "__import__('ast').literal_eval(output_text(body.response))",
    "sympy": "__import__('sympy').parse_expr(output_text(body.response))",
    "open": "open(output_text(body.response)[:99])",
    "import": "__import__(output_text(body.response)[:99])",
    "only what hostile texts reach": "'gi_frame' in output_text(body.response)"
    " and __import__('glob').glob('/nowhere*')",
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_verifier_that_evaluates_is_found(act: str, tmp_path: Path) -> None:
    """The test above fails for verifiers that break the rule."""
    folder = tmp_path / "resources_servers/evaluating"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(EVALUATING.format(act=act))
    judge = [sys.executable, str(HELPERS / "judged.py")]
    row = {"responses_create_params": {"input": "?"}}
    logged = watch(judge, [specify("evaluating", [row])], tmp_path, cwd=tmp_path)
    assert differences(logged, "evaluating")
