"""What every server folder is held to: its configuration, its example rows, its own tests.

A resources server's rows must fit its verifier, gold answers score 1.0, empty and wrong ones less,
the same twice and over every transport.
"""

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from ..config.instances import MODELS, UNSAFE_CODE, references
from ..config.keys.commands import InspectConfig
from ..config.load import load
from ..errors import ConfigError, RolloutError
from ..responses import function_calls, make_response, message_item
from ..serving import registry
from ..serving.service import Service
from ..serving.tools import arguments_of
from ..session import Session, entered
from ..testing import OVERS, Over, ScriptedModel, making, mount
from ..transport.peers import Peers
from ..types import JsonObject

Fields = tuple[str, str]
"""Of an example row: one with a response's text, one with its items."""

GOLD: Fields = ("gold_output", "gold_items")
"""A response that is right."""

WRONG: Fields = ("wrong_output", "wrong_items")
"""One that is not."""

MAX_VERIFIED = 20
"""Rows of a file that are verified with their gold answers, and with their wrong ones."""

A_MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked into; `problem` is empty where it holds."""

    what: str
    problem: str = ""


def examined(folder: Path) -> Iterator[Finding]:
    """Everything about a server folder, `<kind>/<name>`, one finding after the other."""
    kind, name = folder.parent.name, folder.name
    try:
        registry.load(kind, name)
    except ConfigError as error:
        yield Finding("app.py", str(error))
        return
    yield Finding("app.py")
    for path in sorted((folder / "configs").glob("*.yaml")) or [folder / f"configs/{name}.yaml"]:
        yield Finding(f"configs/{path.name}", _configured(path, kind))
    if kind == "resources_servers":
        yield from verified(folder, name)
    yield _own_tests(folder)


def rows_of(path: Path) -> list[JsonObject]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]


def has_response(row: JsonObject, fields: Fields) -> bool:
    return any(row.get(field) for field in fields)


def response_of(row: JsonObject, fields: Fields) -> JsonObject:
    """The response that a row brings in these fields."""
    text, items = fields
    return make_response("example", row.get(items) or [message_item(row[text])], None)


def empty_response() -> JsonObject:
    return make_response("empty", [], None)


def verdicts(name: str, pairs: list[tuple[JsonObject, JsonObject]], over: Over) -> list[JsonObject]:
    """The verdict on each (row, response), each in a session of its own, without what is measured.
    Code in the rows' responses is taken for the author's own: it is run without a sandbox too.

    Where the verdict looks at the session's state, the response's tool calls bring it about first.
    Every judge that the server names finds no two answers equal.
    """

    async def main() -> list[JsonObject]:
        found = []
        server = registry.load("resources_servers", name)
        async with mount({**_judges(server), name: trusting(server)}, over) as peers:
            replays = (await peers.describe(name))["reverify"] == "replay"
            for row, response in pairs:
                with entered(Session()):
                    await peers.call(name, "/seed_session", row, dict)
                    for call in function_calls(response["output"]) if replays else ():
                        await peers.call(name, f"/{call['name']}", arguments_of(call), str)
                    request = {**row, "response": response}
                    verdict = await peers.call(name, "/verify", request, dict)
                    measured = getattr(server, "measured", ())
                    found.append({key: verdict[key] for key in verdict if key not in measured})
                    await peers.call(name, "/close_session", {}, dict)
        return found

    return asyncio.run(main())


def trusting(server: type[Service]) -> Callable[[Peers, str], Service]:
    """For `mount`: the server, to which no code in a row is strange."""
    asked = {UNSAFE_CODE: True, "num_verify_workers": 1}
    return making(server, **{key: asked[key] for key in asked if key in server.Config.model_fields})


def _judges(server: type[Service]) -> dict[str, Callable[[Peers, str], Service]]:
    config = server.Config()
    differ = config.get("judge_not_equal_label", "")
    return {
        ref.name: lambda peers, name: ScriptedModel(lambda params: differ, peers, name)
        for ref in references({}, config)
        if ref.type == MODELS
    }


def _configured(path: Path, kind: str) -> str:
    given = ["policy_base_url=http://localhost/v1", "policy_api_key=k", "policy_model_name=m"]
    paths = [str(path), *([A_MODEL] if kind != "responses_api_models" else [])]
    try:
        load([f"+config_paths=[{','.join(paths)}]", *(f"+{each}" for each in given)], InspectConfig)
    except ConfigError as error:
        return str(error)
    return ""


def verified(folder: Path, name: str) -> Iterator[Finding]:
    """Its rows, and its verdicts on them."""
    gold: list[JsonObject] = []
    wrong: list[JsonObject] = []
    for path in sorted((folder / "data").glob("*.jsonl")):
        rows, problem = _fitting(name, path)
        yield Finding(f"data/{path.name}: {len(rows):,} rows fit the verifier", problem)
        gold += [row for row in rows if has_response(row, GOLD)][:MAX_VERIFIED]
        wrong += [row for row in rows if has_response(row, WRONG)][:MAX_VERIFIED]
    if not gold:
        yield Finding("gold answers", f"no row in {folder}/data has a {' or '.join(GOLD)}")
        return
    pairs = [(row, response_of(row, GOLD)) for row in gold] * 2
    pairs += [(row, empty_response()) for row in gold]
    pairs += [(row, response_of(row, WRONG)) for row in wrong]
    found = []
    for over in OVERS:
        try:
            found.append(verdicts(name, pairs, over))
        except RolloutError as error:
            yield Finding(f"verdicts, {over}", str(error))
            return
    rewards = [verdict["reward"] for verdict in found[0]]
    once, empty, last = len(gold), 2 * len(gold), 3 * len(gold)
    yield _scores(f"{once:,} gold answers score 1.0", [each == 1 for each in rewards[:once]])
    yield _scores("empty responses score less", [each < 1 for each in rewards[empty:last]])
    if wrong:
        less = [each < 1 for each in rewards[last:]]
        yield _scores(f"{len(wrong):,} wrong answers score less", less)
    same = found[0] == found[1] == found[2] and found[0][:once] == found[0][once:empty]
    yield Finding(
        f"the same verdict twice, and over {', '.join(OVERS)}", "" if same else "verdicts differ"
    )


def _scores(what: str, hold: list[bool]) -> Finding:
    failed = [str(number) for number, holds in enumerate(hold, 1) if not holds]
    return Finding(what, f"not number {', '.join(failed[:5])} of those" if failed else "")


def _fitting(name: str, path: Path) -> tuple[list[JsonObject], str]:
    """The rows that a session can be seeded with, and what is wrong with the first that cannot."""

    lines = path.read_bytes().splitlines()

    async def main() -> tuple[list[JsonObject], str]:
        rows, problem = [], ""
        async with mount({name: trusting(registry.load("resources_servers", name))}) as peers:
            for number, line in enumerate(lines, 1):
                try:
                    with entered(Session()):
                        await peers.call(name, "/seed_session", row := orjson.loads(line), dict)
                        await peers.call(name, "/close_session", {}, dict)
                    rows.append(row)
                except (RolloutError, orjson.JSONDecodeError) as error:
                    problem = problem or f"line {number}: {error}"
        return rows, problem

    return asyncio.run(main())


def _own_tests(folder: Path) -> Finding:
    tests = folder / "tests"
    if not list(tests.glob("test_*.py")):
        return Finding("tests", f"there are none: write {tests}/test_app.py")
    if importlib.util.find_spec("pytest") is None:
        return Finding("tests", "they need pytest: pip install pytest")
    command = [sys.executable, "-m", "pytest", "--tb=short", "--import-mode=importlib", str(tests)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout.strip()
    if done.returncode:
        return Finding("tests", said or done.stderr.strip())
    return Finding(f"tests: {said.splitlines()[-1]}")
