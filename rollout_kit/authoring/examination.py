"""Check a server folder: configuration, example rows, verdicts, and its own tests.

For a resources server, rows must fit the verifier, gold answers must score 1.0, empty and wrong
answers less, and verdicts must be equal when repeated and over every transport.
"""

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import orjson

from ..api.testing import OVERS, Over, ScriptedModel, making, mount
from ..config.instances import MODELS, UNSAFE_CODE, references
from ..config.keys import InspectConfig
from ..config.load import Program, load
from ..errors import ConfigError, RolloutError, how_to_install
from ..reading import iterate_lines, open_file
from ..responses import list_calls, make_response, message_item
from ..serving import registry
from ..serving.judges.rubric import reply_literally
from ..serving.resources_server import ResourcesServer
from ..serving.service import Service
from ..serving.tools import arguments_of
from ..serving.transport.peers import Peers
from ..session import Session, entered
from ..types import JsonObject
from .self_writes import find_self_writes

Fields = tuple[str, str]
"""Two fields of an example row: one with the text of a response, one with its items."""

GOLD: Fields = ("gold_output", "gold_items")
"""Fields with a correct response."""

WRONG: Fields = ("wrong_output", "wrong_items")
"""Fields with a wrong response."""

MAX_VERIFIED = 20
"""Rows of a file that are verified."""

A_MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check; `problem` is empty if it passed. A warning is no failure."""

    what: str
    problem: str = ""
    warning: str = ""


def examine(folder: Path) -> Iterator[CheckResult]:
    """Run all checks of a server folder `<kind>/<name>`."""
    kind, name = folder.parent.name, folder.name
    try:
        registry.load(kind, name)
    except ConfigError as error:
        yield CheckResult("app.py", str(error))
        return
    yield CheckResult("app.py")
    for path in sorted((folder / "configs").glob("*.yaml")) or [folder / f"configs/{name}.yaml"]:
        yield CheckResult(f"configs/{path.name}", _check_config(path, kind))
    if kind == "resources_servers":
        for each in find_self_writes(registry.load(kind, name)):
            yield CheckResult("handlers", warning=str(each))
        yield from check_verdicts(folder, name)
    yield _run_own_tests(folder)


def read_rows(path: Path) -> list[JsonObject]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]


def has_response(row: JsonObject, fields: Fields) -> bool:
    return any(row.get(field) for field in fields)


def build_response(row: JsonObject, fields: Fields) -> JsonObject:
    """Build the response that these fields of a row contain."""
    text, items = fields
    return make_response("example", row.get(items) or [message_item(row[text])], None)


def build_empty_response() -> JsonObject:
    return make_response("empty", [], None)


def compute_verdicts(
    name: str, pairs: list[tuple[JsonObject, JsonObject]], over: Over
) -> list[JsonObject]:
    """Verify each (row, response) in a session of its own; leave out `measured` fields.

    The responses are the author's, so code in them may run without a sandbox. If the verdict needs
    the session's state, the tool calls of the response are executed first. Judges are replaced by a
    model that finds no two answers equal. With a rubric, it finds an answer good that is the
    reference, word for word.
    """

    async def main() -> list[JsonObject]:
        found = []
        server = registry.load("resources_servers", name)
        async with mount({**make_judges(server), name: make_trusting(server)}, over) as peers:
            replays = (await peers.describe(name))["reverify"] == "replay"
            for row, response in pairs:
                calls = list_calls(response["output"]) if replays else []
                played = await _play_session(peers, name, row, response, calls)
                found.append(_without_measured(server, played.verdict))
        return found

    return asyncio.run(main())


class PlayedSession(NamedTuple):
    """The replies of the tools of a session, its verdict, and how long the verdict took."""

    replies: list[str]
    verdict: JsonObject
    verify_s: float


async def _play_session(
    peers: Peers, name: str, row: JsonObject, response: JsonObject, calls: list[JsonObject]
) -> PlayedSession:
    """Play one session. Sessions at the same time take turns."""
    replies = list[str]()
    with entered(Session()):
        await peers.call(name, "/seed_session", row, dict)
        await asyncio.sleep(0)
        for call in calls:
            replies.append(await peers.call(name, f"/{call['name']}", arguments_of(call), str))
            await asyncio.sleep(0)
        began = perf_counter()
        verdict = await peers.call(name, "/verify", {**row, "response": response}, dict)
        verify_s = perf_counter() - began
        await peers.call(name, "/close_session", {}, dict)
    return PlayedSession(replies, verdict, verify_s)


def _without_measured(server: type[Service], verdict: JsonObject) -> JsonObject:
    measured = getattr(server, "measured", ())
    return {key: verdict[key] for key in verdict if key not in measured}


def _check_sessions(name: str, pairs: list[tuple[JsonObject, JsonObject]]) -> Iterator[CheckResult]:
    """Sessions at the same time get the replies and verdicts that they get one by one. The latter
    are timed."""
    server = registry.load("resources_servers", name)
    tools = {*getattr(server, "tools", ()), *getattr(server, "user_tools", ())}

    async def play(*, at_once: bool) -> list[PlayedSession]:
        async with mount({**make_judges(server), name: make_trusting(server)}) as peers:
            calls = [
                [each for each in list_calls(response["output"]) if each["name"] in tools]
                for _, response in pairs
            ]
            sessions = [
                _play_session(peers, name, *pair, own)
                for pair, own in zip(pairs, calls, strict=True)
            ]
            if at_once:
                found = await asyncio.gather(*sessions)
            else:
                found = [await each for each in sessions]
        return [each._replace(verdict=_without_measured(server, each.verdict)) for each in found]

    what = f"{len(pairs):,} sessions at the same time, equal to one after the other"
    try:
        alone, together = (asyncio.run(play(at_once=at_once)) for at_once in (False, True))
    except RolloutError as error:
        yield CheckResult(what, str(error))
        return
    differ = sum(one[:2] != other[:2] for one, other in zip(alone, together, strict=True))
    problem = f"{differ:,} of them differ: what belongs to a session is shared by all. Keep it in"
    problem += " self.state, not on self, in the class, the module, a closure or a file"
    yield CheckResult(what, problem if differ else "")
    times = sorted(each.verify_s * 1000 for each in alone)
    middle, slowest = times[len(times) // 2], times[-1]
    yield CheckResult(f"a verdict takes {middle:.1f} ms, the slowest {slowest:.1f} ms")


def make_trusting(server: type[Service]) -> Callable[[Peers, str], Service]:
    """Return a factory of the server, configured to run code without a sandbox, and to score what
    its judge, which is replaced, says nothing about."""
    asked = {UNSAFE_CODE: True, "num_verify_workers": 1, "default_score": 3.0}
    return making(server, **{key: asked[key] for key in asked if key in server.Config.model_fields})


def make_judges(server: type[Service]) -> dict[str, Callable[[Peers, str], Service]]:
    config = server.Config()
    differ = config.get("judge_not_equal_label", "")

    literally = getattr(server, "reply_literally", reply_literally)

    def reply(params: JsonObject) -> str:
        return literally(str(params["input"][-1].get("content"))) or differ

    return {
        ref.name: lambda peers, name: ScriptedModel(reply, peers, name)
        for ref in references({}, config)
        if ref.type == MODELS
    }


def _check_config(path: Path, kind: str) -> str:
    if not path.exists():
        return f"no configuration: write {path}"
    given = {"base_url": "http://localhost/v1", "api_key": "k", "model_name": "m"}
    paths = [str(path), *([A_MODEL] if kind != "responses_api_models" else [])]
    program = Program(paths, {f"policy_{name}": value for name, value in given.items()})
    try:
        load([], InspectConfig, program=program)
    except ConfigError as error:
        return str(error)
    return ""


def check_verdicts(folder: Path, name: str) -> Iterator[CheckResult]:
    """Check the rows and the verdicts on them."""
    gold: list[JsonObject] = []
    wrong: list[JsonObject] = []
    for path in sorted((folder / "data").glob("*.jsonl")):
        rows, problem = _check_rows(name, path)
        yield CheckResult(f"data/{path.name}: {len(rows):,} rows fit the verifier", problem)
        gold += [row for row in rows if has_response(row, GOLD)][:MAX_VERIFIED]
        wrong += [row for row in rows if has_response(row, WRONG)][:MAX_VERIFIED]
    if not gold:
        yield CheckResult("gold answers", f"no row in {folder}/data has a {' or '.join(GOLD)}")
        return
    server = registry.load("resources_servers", name)
    if getattr(server, "verify", None) is ResourcesServer.verify:
        yield _check_groups(name, gold, wrong)
        return
    pairs = [(row, build_response(row, GOLD)) for row in gold] * 2
    pairs += [(row, build_empty_response()) for row in gold]
    pairs += [(row, build_response(row, WRONG)) for row in wrong]
    found = []
    for over in OVERS:
        try:
            found.append(compute_verdicts(name, pairs, over))
        except RolloutError as error:
            yield CheckResult(f"verdicts, {over}", str(error))
            return
    rewards = [verdict["reward"] for verdict in found[0]]
    once, empty, last = len(gold), 2 * len(gold), 3 * len(gold)
    yield _check_scores(f"{once:,} gold answers score 1.0", [each == 1 for each in rewards[:once]])
    yield _check_scores("empty responses score less", [each < 1 for each in rewards[empty:last]])
    if wrong:
        less = [each < 1 for each in rewards[last:]]
        yield _check_scores(f"{len(wrong):,} wrong answers score less", less)
    same = found[0] == found[1] == found[2] and found[0][:once] == found[0][once:empty]
    what = f"equal verdicts when repeated, and over {', '.join(OVERS)}"
    yield CheckResult(what, "" if same else "verdicts differ")
    yield from _check_sessions(name, [*pairs[:once], *pairs])


def _check_groups(name: str, gold: list[JsonObject], wrong: list[JsonObject]) -> CheckResult:
    """Of a server that scores groups only: it scores those of the examples, over every transport
    alike."""
    what = f"{len(gold):,} gold answers and {len(wrong):,} wrong answers are scored in groups"
    what += f", equally over {', '.join(OVERS)}"
    try:
        found = [compute_group_scores(name, gold, over) for over in OVERS]
    except RolloutError as error:
        return CheckResult(what, str(error))
    return CheckResult(what, "" if found[0] == found[1] == found[2] else "scores differ")


def compute_group_scores(name: str, rows: list[JsonObject], over: Over) -> list[JsonObject]:
    """The scores of groups of a row's answers and an empty one; judges as in `compute_verdicts`."""

    async def main() -> list[JsonObject]:
        server = registry.load("resources_servers", name)
        async with mount({**make_judges(server), name: make_trusting(server)}, over) as peers:
            found = []
            for row in rows:
                given = [
                    build_response(row, fields) for fields in (GOLD, WRONG) if row.get(fields[0])
                ]
                members = [{"response": each} for each in (*given, build_empty_response())]
                with entered(Session()):
                    request = {"task": row, "members": members}
                    found.append(await peers.call(name, "/verify_group", request, dict))
            return found

    return asyncio.run(main())


def _check_scores(what: str, hold: list[bool]) -> CheckResult:
    failed = [str(number) for number, holds in enumerate(hold, 1) if not holds]
    return CheckResult(what, f"not number {', '.join(failed[:5])} of those" if failed else "")


def _check_rows(name: str, path: Path) -> tuple[list[JsonObject], str]:
    """Return the rows that the verifier accepts, and the error of the first other row."""

    with open_file(path) as stream:
        lines = [*iterate_lines(stream)]

    async def main() -> tuple[list[JsonObject], str]:
        rows, problem = [], ""
        async with mount({name: make_trusting(registry.load("resources_servers", name))}) as peers:
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


def _run_own_tests(folder: Path) -> CheckResult:
    tests = folder / "tests"
    if not list(tests.glob("test_*.py")):
        return CheckResult("tests", f"no tests: write {tests}/test_app.py")
    if importlib.util.find_spec("pytest") is None:
        reason = f"not run, as pytest is not installed: {how_to_install('pytest')}"
        return CheckResult("tests", warning=reason)
    command = [sys.executable, "-m", "pytest", "--tb=short", "--import-mode=importlib", str(tests)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout.strip()
    if done.returncode:
        return CheckResult("tests", said or done.stderr.strip())
    return CheckResult(f"tests: {said.splitlines()[-1]}")
