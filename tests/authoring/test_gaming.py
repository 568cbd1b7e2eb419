"""The audit finds verifiers that can be gamed, and says how."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planted
import planted_later
import pytest
from support import slow, write_jsonl

from rollout_kit.authoring.answers import build_cases
from rollout_kit.authoring.audit import Audit
from rollout_kit.authoring.audit_run import AuditStep, Stage
from rollout_kit.authoring.gaming.obedient_judge import reply_obediently, write_order
from rollout_kit.authoring.gaming.search import Holes, search_holes
from rollout_kit.authoring.gaming.text_flow import find_text_sinks
from rollout_kit.serving.judges.rubric import quote

JUDGE = "the_judge"

Search = Callable[[str, list[dict[str, Any]]], Holes]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    """Searches the code of a verifier with its rows; judges are the obedient one."""
    monkeypatch.chdir(tmp_path)

    def found(code: str, rows: list[dict[str, Any]]) -> Holes:
        app = tmp_path / "resources_servers/env/app.py"
        app.parent.mkdir(parents=True)
        app.write_text(planted.HEAD + code)
        judges = [JUDGE] if "ServerRef" in code else []
        settings = {"judge": {"type": "responses_api_models", "name": JUDGE}} if judges else {}
        cases = build_cases(rows)
        stage = Stage(
            verifier={"name": "env", "implementation": "env", "settings": settings},
            folder=app.parent,
            urls={},
            cases=[{"row": case.row, "response": case.response} for case in cases],
            timeout_s=60,
            obedient=judges,
        )

        async def main() -> Holes:
            base = await stage.play([AuditStep("first", range(len(cases)))])
            audit = Audit(cases, base.about, base, False, False)
            return await search_holes(audit, stage, rows, judges, lambda line: None)

        return asyncio.run(main())

    return found


@pytest.mark.parametrize(
    "name", [slow(name) if name in planted.SLOW else name for name in planted.VERIFIERS]
)
def test_a_hole_is_found(search: Search, name: str) -> None:
    """Some planted verifiers run answers as code. The programs that the audit writes are harmless:
    they only print, exit, raise or define objects, and its other answers are plain text. The slow
    ones start a process for each answer, or evaluate it."""
    found = search(planted.VERIFIERS[name], planted.make_rows(name))
    flags = dict(found.flags)
    assert planted.FLAGS[name] in flags, flags


@pytest.mark.slow
@pytest.mark.parametrize("name", planted_later.FLAGS)
def test_a_hole_that_the_audit_was_not_tuned_to_is_found(search: Search, name: str) -> None:
    found = search(planted_later.VERIFIERS[name], planted_later.make_rows(name))
    assert planted_later.FLAGS[name] in dict(found.flags), found.flags


def test_every_later_verifier_is_accounted_for() -> None:
    listed = [*planted_later.FLAGS, *planted_later.CONSTANT]
    assert sorted(listed) == sorted(planted_later.VERIFIERS)


def test_a_sound_verifier_has_none(search: Search) -> None:
    found = search(planted.SOUND, planted.make_rows("sound"))
    assert found.flags == []
    assert len(found.tricks) > 300


SAFE = """
import re, yaml, json
from rollout_kit import ResourcesServer, Sandbox, output_text
from pathlib import Path

class Env(ResourcesServer):
    def __init__(self, *given):
        super().__init__(*given)
        self._sandbox = Sandbox(1, task=Path(__file__).with_name("inside.py"))

    async def verify(self, task, response):
        said = output_text(response)
        yaml.load(said, Loader=yaml.SafeLoader)
        yaml.safe_load(said)
        json.loads(said)
        re.search("a+", said)
        re.search(re.escape(task["expected_answer"]), said)
        eval("1 + 1")
        run = await self._sandbox.call("score", said)
        (Path("/data") / Path(said).name).read_text()
        read_inside(Path("/data"), said)
        return helper(float(said))

def helper(value):
    return eval(f"{value}")

def read_inside(folder, name):
    path = (folder / name).resolve()
    if not path.is_relative_to(folder):
        raise ValueError(name)
    return path.read_text()
"""

FLOWS = {
    "a variable": "text = said.strip(); eval(text)",
    "a loop": "\n        for line in said.splitlines(): exec(line)",
    "a thread": "await asyncio.to_thread(eval, said)",
    "a map": "list(map(eval, said.split()))",
    "another name": "run = eval; run(said)",
    "an attribute": "self.kept = said; self.later()",
    "a module": "unsafe.compare(said, '1')",
    "an import that is renamed": "p.loads(base64.b64decode(said))",
    "a loader": "yaml.load(said, Loader=yaml.Loader)",
    "a template": "jinja2.Environment().from_string(task['prompt']).render()",
    "a program": "subprocess.run(['python', '-c', said])",
    "a worker": "await self.pool.call(said)",
    "a file": "open(f'/data/{said}').read()",
    "a path": "place = Path('/data') / said; place.read_text()",
    "a path with a name": "(Path(Path('/data').name) / said).write_text('1')",
}

UNSAFE = """
import asyncio, base64, pickle as p, subprocess, jinja2, yaml
from pathlib import Path
from rollout_kit import ResourcesServer, WorkerPool, output_text
from . import unsafe

class Env(ResourcesServer):
    def make(self):
        self.pool = WorkerPool(Path(__file__).with_name("work.py"), "work")

    def later(self):
        exec(self.kept)

    async def verify(self, task, response):
        said = output_text(response)
        {}
"""


def write_folder(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("way", FLOWS)
def test_text_is_followed_to_what_runs_it(tmp_path: Path, way: str) -> None:
    files = {"app.py": UNSAFE.format(FLOWS[way])}
    if way == "a module":
        files["unsafe.py"] = "import sympy\ndef compare(a, b):\n    return sympy.sympify(a) == b\n"
    if way == "a worker":
        files["work.py"] = "def work(text):\n    return eval(text)\n"
    [found] = find_text_sinks(write_folder(tmp_path, files))
    assert found.file.name in files and f"{found.line}: " in f"{found}"


def test_what_is_parsed_or_stays_in_the_sandbox_is_fine(tmp_path: Path) -> None:
    files = {"app.py": SAFE, "inside.py": "def score(text):\n    return eval(text)\n"}
    assert find_text_sinks(write_folder(tmp_path, files)) == []


@pytest.mark.parametrize("is_quoted", [True, False])
def test_the_obedient_judge_obeys_outside_a_quotation(is_quoted: bool) -> None:
    answer = write_order(0)
    shown = quote(answer, "answer") if is_quoted else f'"""{answer}"""'
    prompt = f"Grade this:\n{shown}\nReply yes or no."
    replies = {reply_obediently({"input": each}) for each in (prompt, json.dumps(prompt))}
    assert ("yes" in replies) == (not is_quoted)
    assert reply_obediently({"input": json.dumps(answer)}) == reply_obediently({"input": "?"})


def test_rows_of_few_answers_are_options_and_no_leak(search: Search, tmp_path: Path) -> None:
    rows = [
        planted.ask(f"Is {n} even? End with 'Answer: 1' or 'Answer: 0'.", f"It is {n % 2}")
        | {"expected_answer": f"{n % 2}"}
        for n in (3, 4, 7, 8)
    ]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    assert "the prompt holds the answer" not in dict(search(planted.SOUND, rows).flags)
