"""The keyword arguments of the API, as a type checker and an editor see them."""

import json
import subprocess
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

from rollout_kit.api.arguments import OF_REQUESTS, OF_SERVERS
from rollout_kit.api.keys import CollectKeys, ReverifyKeys, StartKeys
from rollout_kit.config.keys import CollectConfig, FieldSource, Parallelism, ReverifyConfig
from rollout_kit.config.shard import Shard
from rollout_kit.types import JsonObject

ROOT = Path(__file__).resolve().parents[2]

DECLARED: list[tuple[Any, type[BaseModel]]] = [
    (CollectKeys, CollectConfig),
    (ReverifyKeys, ReverifyConfig),
]


def parts(annotation: Any) -> set[Any]:
    """The members of a union, as a program may give them."""
    if get_origin(annotation) in (Union, UnionType):
        return {part for each in get_args(annotation) for part in parts(each)}
    if annotation is Path:
        return {str, Path}
    if annotation is Parallelism:
        return {int, str, Parallelism}
    if annotation is Shard:
        return {str, Shard}
    if annotation == dict[str, FieldSource]:  # each may be a text
        return {JsonObject}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation, JsonObject}
    return {annotation}


@pytest.mark.parametrize(("keys", "config"), DECLARED)
def test_a_key_is_declared_with_the_type_of_its_field(keys: Any, config: type[BaseModel]) -> None:
    declared = get_type_hints(keys)
    assert set(declared) == set(config.model_fields)
    for name, field in config.model_fields.items():
        assert parts(declared[name]) == parts(field.annotation), name


def test_servers_take_the_keys_that_concern_servers() -> None:
    assert set(get_type_hints(StartKeys)) == {*OF_SERVERS, *OF_REQUESTS}
    declared = get_type_hints(CollectKeys)
    for name, annotation in get_type_hints(StartKeys).items():
        assert annotation == declared[name], name


def value_of(annotation: Any) -> str:
    """An expression of this type."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else [annotation]
    kind = next(each for each in kinds if each is not NoneType)
    if get_origin(kind) is Literal:
        return repr(get_args(kind)[0])
    if get_origin(kind) is list:
        return "['a']"
    if kind is Path:
        return "Path('a')"
    if kind is Parallelism or kind is Shard:
        return "'1/2'"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "{}"
    return {bool: "True", int: "3", float: "0.5", str: "'a'"}.get(kind, "{}")


def check(text: str, folder: Path) -> dict[int, str]:
    """Line → what pyright says about it."""
    program = folder / "program.py"
    program.write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--project", ROOT, str(program)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    found = json.loads(ran.stdout)["generalDiagnostics"]
    errors = [each for each in found if each["severity"] == "error"]
    return {each["range"]["start"]["line"] + 1: each["message"] for each in errors}


RIGHT = """
rk.collect("tasks.jsonl", servers="a.yaml")
rk.collect([{}], model=lambda params: "4", verify=lambda task, response: 1.0)
rk.collect(model=rk.Endpoint("http://x/v1", "m"), environment="mcqa", dataset="example")
rk.collect([{}], model=Echo, environment=Own, parallelism="auto", retry=2)
rk.collect([{}], servers=["a.yaml", Path("b.yaml")], limits=rk.Budget(5.0), retry=rk.RetryPolicy())
rk.collect([{}], model=Echo(), verify=Own(), limits=rk.RolloutLimits(), sink=Sink())
rk.collect_sync("tasks.jsonl", servers="a.yaml", num_repeats=4)
rk.servers("a.yaml", agents={"mine": Mine}, model="openai/gpt-4o-mini", record="tape")
"""

WRONG = """
rk.collect("tasks.jsonl", servers=5)
rk.collect([{}], model=5, environment="mcqa")
rk.collect([{}], model=Own, environment="mcqa")
rk.collect([{}], model=Echo, environment=Echo)
rk.collect([{}], model=Echo, verify="mcqa")
rk.collect([{}], servers="a.yaml", parallelism=0.5)
rk.collect([{}], servers="a.yaml", limits=5)
rk.collect([{}], servers="a.yaml", retry="often")
rk.collect([{}], servers="a.yaml", sink=print)
rk.collect_sync("tasks.jsonl", servers="a.yaml", num_repeat=4)
rk.collect_sync("tasks.jsonl", servers="a.yaml", num_repeats="4")
rk.servers("a.yaml", agents=Echo)
rk.servers("a.yaml", num_repeats=4)
"""

HEAD = """from collections.abc import Sequence
from pathlib import Path
import rollout_kit as rk
class Echo(rk.Model): ...
class Own(rk.ResourcesServer): ...
class Mine(rk.Agent): ...
class Sink:
    def append_all(self, outcomes: Sequence[rk.Rollout | rk.Failure | rk.Unverified]) -> None: ...
async def sum_up() -> None:
    table = await rk.collect([{}], servers="a.yaml")
    rewards: list[float | None] = [each.reward for each in table]
    print(rewards, table.metrics["metrics"], table.failures[0].error)
    async for outcome in rk.collect([{}], servers="a.yaml"):
        print(outcome.key.task_id)
    for each in rk.collect_sync([{}], servers="a.yaml"):
        print(each.key.task_id)
"""


def test_a_type_checker_knows_every_key(tmp_path: Path) -> None:
    """A right value is accepted, a wrong one and a wrong name are refused, one to a line."""
    lines, wrong = HEAD.splitlines(), set()

    def add(line: str, *, is_wrong: bool) -> None:
        lines.append(line)
        if is_wrong:
            wrong.add(len(lines))

    for keys, call in ((CollectKeys, "rk.collect([{}]"), (ReverifyKeys, "rk.reverify('a', 'b'")):
        for name, annotation in get_type_hints(keys).items():
            add(f"{call}, {name}={value_of(annotation)})", is_wrong=False)
            add(f"{call}, {name}=object())", is_wrong=True)
            add(f"{call}, {name}x={value_of(annotation)})", is_wrong=True)
    for line in RIGHT.split("\n")[1:-1]:
        add(line, is_wrong=False)
    for line in WRONG.split("\n")[1:-1]:
        add(line, is_wrong=True)
    found = check("\n".join(lines), tmp_path)
    assert {lines[at - 1]: what for at, what in found.items() if at not in wrong} == {}
    assert [lines[at - 1] for at in sorted(wrong - found.keys())] == []
