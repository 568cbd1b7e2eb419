"""docs/writing-a-resources-server.md step by step: its files are written, its commands are run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint
from support import read_jsonl
from workplace import ROOT, Workplace

from rollout_kit.api.testing import call_response, text_response
from rollout_kit.responses import function_calls

DOCUMENT = (ROOT / "docs/writing-a-resources-server.md").read_text()
APP, TEST = "resources_servers/shop/app.py", "resources_servers/shop/tests/test_app.py"
READING = "resources_servers/shop/reading.py"
VERIFIER, TOOL, STATE, SLOW = 0, 1, 2, 3


def files(name: str) -> list[str]:
    """Every block that is the content of that file, in order."""
    found = re.findall(rf"^```\w+ {re.escape(name)}\n(.*?)^```", DOCUMENT, re.DOTALL | re.M)
    assert found, name
    return found


def command(containing: str) -> list[str]:
    steps = DOCUMENT[DOCUMENT.index("## A verifier") :]
    blocks = re.findall(r"^```bash\n(.*?)^```", steps, re.DOTALL | re.MULTILINE)
    found = next(block for block in blocks if containing in block)
    return shlex.split(found)


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def shopper(body: dict[str, Any]) -> tuple[int, Any]:
    """Uses the tool that it is offered, once, and says what three apples cost."""
    tools = [each["name"] for each in body.get("tools", ())]
    arguments = {"price": '{"item": "apple"}', "buy": '{"item": "apple", "number": 3}'}
    if tools and not function_calls(body["input"]):
        return 200, call_response((tools[0], arguments[tools[0]]))
    return 200, text_response("6")


@pytest.mark.parametrize(
    ("step", "called", "scores"),
    [
        (VERIFIER, [], {"length": 1}),
        (TOOL, [("price", "2")], {}),
        (STATE, [("buy", "6")], {"off_by": 0}),
        (SLOW, [], {}),
    ],
)
def test_each_step_is_collected_with_by_the_command_shown(
    tmp_path: Path, step: int, called: list[tuple[str, str]], scores: dict[str, Any]
) -> None:
    with endpoint(shopper) as model:
        place = Workplace(tmp_path, model)
        write(tmp_path, APP, files(APP)[step])
        for name in ("shop.yaml", "tasks.jsonl", READING):
            write(tmp_path, name, *files(name))
        name, *argv = command("ng_collect_rollouts")
        status, said = place.run(name.removeprefix("ng_"), *argv)
    assert status == 0, said
    [line] = read_jsonl(tmp_path / "results/shop.jsonl")
    output = line["response"]["output"]
    outputs = [item["output"] for item in output if item["type"] == "function_call_output"]
    names = [call["name"] for call in function_calls(output)]
    assert list(zip(names, outputs, strict=True)) == called
    assert line["reward"] == 1.0
    assert {name: line[name] for name in line["rollout"]["scores"]} == scores


def test_a_row_that_does_not_fit_is_refused_before_the_policy_is_asked(tmp_path: Path) -> None:
    with endpoint(shopper) as model:
        place = Workplace(tmp_path, model)
        write(tmp_path, APP, files(APP)[TOOL])
        write(tmp_path, "shop.yaml", *files("shop.yaml"))
        [row] = files("tasks.jsonl")
        write(tmp_path, "tasks.jsonl", row.replace('"total": 6', '"total": "cheap"'))
        name, *argv = command("ng_collect_rollouts")
        status, said = place.run(name.removeprefix("ng_"), *argv)
        assert (status, sum(model.saw.values())) == (2, 0), said
    assert "total: Input should be a valid integer" in said


def test_the_tests_shown_pass_and_notice_a_broken_server(tmp_path: Path) -> None:
    write(tmp_path, TEST, *files(TEST))
    app = files(APP)[STATE]
    for source, num_failed in ((app, 0), (app.replace("number * PRICES", "PRICES"), 2)):
        write(tmp_path, APP, source)
        python, *argv = command("pytest")
        assert python == "python"
        done = subprocess.run(
            [sys.executable, *argv, "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the document's tests need no plugin
            },
            capture_output=True,
            text=True,
        )
        assert f"{4 - num_failed} passed" in done.stdout, done.stdout + done.stderr
        assert (f"{num_failed} failed" in done.stdout) == (num_failed > 0)
