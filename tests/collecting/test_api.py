"""The public Python API: what docs/python.md shows, and what a program may rely on."""

import ast
import asyncio
import inspect
import json
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from support import blocks, read_jsonl

import rollout_kit as rk

ROOT = Path(__file__).resolve().parents[2]

DEMO = "responses_api_models/local_model/data/demo.jsonl"


LIGHT = """
config_paths: [resources_servers/mcqa/configs/mcqa.yaml]
policy_model:
  responses_api_models:
    simulated_model:
      entrypoint: app.py
      answer: script
      script_jsonl_fpath: resources_servers/mcqa/data/example.jsonl
      accuracy: 0.5
      latency_s: {median: 0.05, sigma: 0}
"""
"""Servers that start at once and run in the process of the test."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a few tasks of the demo."""
    monkeypatch.chdir(tmp_path)
    lines = (ROOT / DEMO).read_text().splitlines(keepends=True)
    (tmp_path / "tasks.jsonl").write_text("".join(lines[:3]))
    return tmp_path


@pytest.fixture
def light(folder: Path) -> Path:
    """A working directory with a few tasks for LIGHT."""
    (folder / "light.yaml").write_text(LIGHT)
    rows = (ROOT / "resources_servers/mcqa/data/example.jsonl").read_text()
    (folder / "tasks.jsonl").write_text("".join(rows.splitlines(keepends=True)[:3]))
    return folder


def compiled(text: str) -> CodeType:
    """A block with `await` at the top level, as a notebook runs it."""
    return compile(text, "docs/python.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_document_runs_as_it_stands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, Any] = {}

    async def run() -> None:
        for block in blocks((ROOT / "docs/python.md").read_text()):
            if block.language == "python" and not block.reason:
                found = eval(compiled(block.text), scope)
                if inspect.iscoroutine(found):
                    await found

    asyncio.run(run())
    assert len(read_jsonl(folder / "rollouts.jsonl")) == 12
    assert len(read_jsonl(folder / "reverified.jsonl")) == 12
    assert scope["run"].metrics["verdicts"]["same"] == 12
    assert "'reward'" in capsys.readouterr().out


def test_a_collection_continues_and_can_be_left_early(light: Path) -> None:
    async def first() -> int:
        async with rk.servers("light.yaml") as servers:
            keys = {"num_repeats": 2, "num_samples_in_parallel": 1}
            run = rk.collect(servers, "tasks.jsonl", output="out.jsonl", **keys)
            async for outcome in run:
                assert isinstance(outcome, rk.Rollout) and outcome.reward in (0.0, 1.0)
                break
        return len(read_jsonl(light / "out.jsonl"))

    async def rest() -> int:
        async with rk.servers("light.yaml") as servers:
            run = rk.collect(servers, "tasks.jsonl", output="out.jsonl", num_repeats=2)
            number = len([outcome async for outcome in run])
            assert run.status == 0 and run.metrics["counts"]["rollouts"] == 6
            return number

    done = asyncio.run(first())
    assert 1 <= done < 6 and asyncio.run(rest()) == 6 - done
    keys = [rollout.key for rollout in rk.load("out.jsonl")]
    assert len(set(keys)) == len(keys) == 6


@pytest.mark.parametrize("is_async", [False, True])
def test_tasks_may_be_any_iterable_and_need_no_file(light: Path, is_async: bool) -> None:
    rows = read_jsonl(light / "tasks.jsonl")

    async def stream():  # type: ignore[no-untyped-def]
        for each in rows:
            await asyncio.sleep(0)
            yield each

    async def run() -> list[Any]:
        async with rk.servers("light.yaml") as servers:
            tasks = stream() if is_async else iter(rows)
            return [outcome async for outcome in rk.collect(servers, tasks)]

    outcomes = asyncio.run(run())
    assert len({outcome.key for outcome in outcomes}) == 3
    assert {path.name for path in light.iterdir()} <= {"light.yaml", "tasks.jsonl", "logs"}


def test_an_iterable_that_fails_raises_in_the_loop(light: Path) -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield read_jsonl(light / "tasks.jsonl")[0]
        raise LookupError("the database is gone")

    async def run() -> None:
        async with rk.servers("light.yaml") as servers:
            async for _ in rk.collect(servers, broken(), output="out.jsonl"):
                pass

    with pytest.raises(LookupError, match="the database is gone"):
        asyncio.run(run())


def test_the_servers_of_an_ng_run_are_used_where_they_are(folder: Path) -> None:
    code = "from rollout_kit.commands import main; main('ng_run')"
    words = ["+config_paths=[configs/demo.yaml]", "+head_server.port=0"]
    argv = [sys.executable, "-c", code, *words]

    async def run(url: str) -> list[Any]:
        async with rk.connect(url) as servers:
            run = rk.collect(servers, "tasks.jsonl", output="out.jsonl", num_repeats=2)
            collected = [outcome async for outcome in run]
            again = rk.reverify(servers, "out.jsonl", output="again.jsonl")
            async for _ in again:
                pass
            assert again.metrics is not None and again.metrics["verdicts"]["same"] == 6
            return collected

    with subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = next(line for line in process.stdout if "Head server: " in line)
            url = ready.partition("Head server: ")[2].partition(" ")[0].rstrip(".")
            collected = asyncio.run(run(url))
        finally:
            process.terminate()
            process.communicate()
    assert len(collected) == 6 and all(isinstance(each, rk.Rollout) for each in collected)


def test_bad_keys_are_named(folder: Path) -> None:
    with pytest.raises(rk.ConfigError, match="num_repeat"):
        rk.collect(None, "tasks.jsonl", num_repeat=2)  # type: ignore[arg-type]
    with pytest.raises(rk.ConfigError, match="num_samples_in_parallel"):
        rk.collect(None, "tasks.jsonl", num_samples_in_parallel="many")  # type: ignore[arg-type]
    for key in ("dry_run", "record", "request_timeout_s"):
        with pytest.raises(rk.ConfigError, match=key):
            rk.collect(None, "tasks.jsonl", **{key: 1})  # type: ignore[arg-type]
    for tasks in (None, 5, b"tasks.jsonl", {"a": 1}):
        with pytest.raises(rk.ConfigError, match="tasks: expected"):
            rk.collect(None, tasks)  # type: ignore[arg-type]
    with pytest.raises(rk.ConfigError, match="name the file of rollouts"):
        rk.reverify(None, "rollouts.jsonl", output=None)  # type: ignore[arg-type]
    for url in ("nowhere", "http://127.0.0.1:99999", "ftp://127.0.0.1:21", 5):
        with pytest.raises(rk.ConfigError, match="expected a URL"):
            asyncio.run(rk.connect(url).__aenter__())  # type: ignore[arg-type]
    with pytest.raises(rk.ConfigError, match="no input file"):
        list(rk.load("missing.jsonl"))


def test_a_run_that_was_left_is_continued_at_once_in_the_same_loop(light: Path) -> None:
    async def run() -> tuple[int, int]:
        async with rk.servers("light.yaml") as servers:
            given = {"output": "out.jsonl", "num_repeats": 4}
            async for _ in rk.collect(servers, "tasks.jsonl", **given):
                break
            on_disk = len(read_jsonl(light / "out.jsonl"))
            rest = [each async for each in rk.collect(servers, "tasks.jsonl", **given)]
            return on_disk, len(rest)

    on_disk, rest = asyncio.run(run())
    assert on_disk >= 1 and len(list(rk.load("out.jsonl"))) == 12 >= on_disk + rest - 1


def test_workers_run_the_rollouts_and_keep_their_settings(light: Path) -> None:
    async def main() -> None:
        async with rk.servers("light.yaml", executor="processes", num_workers=2) as servers:
            first = [each async for each in rk.collect(servers, "tasks.jsonl", output="o.jsonl")]
            assert all(isinstance(each, rk.Rollout) for each in first)
            keys: dict[str, Any] = {"output": "o.jsonl", "resume": "append"}
            again = [each async for each in rk.collect(servers, "tasks.jsonl", **keys)]
            assert len(read_jsonl(light / "o.jsonl")) == len(first) + len(again)
            with pytest.raises(rk.ConfigError, match="other settings or limits"):
                async for _ in rk.collect(servers, "tasks.jsonl", max_attempts=7):
                    pass
            with pytest.raises(rk.ConfigError, match=r"give it to servers\("):
                rk.collect(servers, "tasks.jsonl", executor="processes")

    asyncio.run(main())


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray would look for its cluster")
def test_servers_on_nodes_are_those_of_the_command(light: Path) -> None:
    async def main() -> None:
        words = ["++policy_model.responses_api_models.simulated_model.placement=ray"]
        async with rk.servers("light.yaml", overrides=words):
            pass

    with pytest.raises(rk.ConfigError, match="needs Ray"):
        asyncio.run(main())


def test_a_run_is_iterated_once_and_can_be_stopped_before_it_begins(light: Path) -> None:
    async def run() -> list[Any]:
        async with rk.servers("light.yaml") as servers:
            run = rk.collect(servers, "tasks.jsonl", output="out.jsonl")
            run.stop()
            outcomes = [outcome async for outcome in run]
            with pytest.raises(rk.ConfigError, match="iterated over once"):
                async for _ in run:
                    pass
            return outcomes

    assert asyncio.run(run()) == []


def test_what_is_no_server_is_named() -> None:
    for given in (rk.servers("run.yaml"), 5, {"a": 1}, [None], b"run.yaml"):
        with pytest.raises(rk.ConfigError, match=f"async with .* got {type(given).__name__};"):
            rk.collect(given, [])  # type: ignore[arg-type]
    with pytest.raises(rk.ConfigError, match="servers: none are given"):
        rk.collect([])


def test_paths_in_a_list_are_shown_as_arguments() -> None:
    async def start(given: list[str]) -> None:
        async with rk.servers(given):  # type: ignore[arg-type]
            pass

    with pytest.raises(rk.ConfigError, match=r"servers\('a.yaml', 'b.yaml'\), got \['x.yaml'\]"):
        asyncio.run(start(["x.yaml"]))
    with pytest.raises(rk.ConfigError, match=r"load\('a.jsonl', 'b.jsonl'\), got \['x.jsonl'\]"):
        rk.load(["x.jsonl"])  # type: ignore[arg-type]


def test_a_run_needs_servers_that_have_not_stopped(light: Path) -> None:
    async def run() -> None:
        async with rk.servers("light.yaml") as servers:
            run = rk.collect(servers, "tasks.jsonl", output="out.jsonl")
        async for _ in run:
            pass

    with pytest.raises(rk.ConfigError, match="the servers have stopped"):
        asyncio.run(run())
    assert not (light / "out.jsonl").exists()


def test_rows_of_an_iterable_are_checked_and_copied(light: Path) -> None:
    row = read_jsonl(light / "tasks.jsonl")[0]

    def reuse():  # type: ignore[no-untyped-def]
        for number in range(3):
            row["number"] = number
            yield row

    async def main() -> None:
        async with rk.servers("light.yaml") as servers:

            async def run(tasks: Any, **keys: Any) -> list[Any]:
                return [outcome async for outcome in rk.collect(servers, tasks, **keys)]

            found = await run(reuse())
            assert sorted(outcome.line["number"] for outcome in found) == [0, 1, 2]
            assert len(await run([5, None, object(), row, {}])) == 1
            assert len(await run([{}, row, row], limit=2, num_repeats=2)) == 4
            with pytest.raises(rk.ConfigError, match="row 1: not a JSON object"):
                await run([5])
            with pytest.raises(rk.ConfigError, match="row 2: not a JSON object"):
                await run([row, 5], strict_input=True)

    asyncio.run(main())


def test_synchronous_code_may_stop_early_and_sees_errors(light: Path) -> None:
    keys = {"num_repeats": 30, "num_samples_in_parallel": 1}
    run = rk.collect_sync("light.yaml", "tasks.jsonl", output="out.jsonl", **keys)
    for outcome in run:
        assert isinstance(outcome, rk.Rollout)
        break
    threads = [thread for thread in threading.enumerate() if thread.name == "collect"]
    assert not threads, "leaving the loop ends the thread"
    assert 1 <= len(read_jsonl(light / "out.jsonl")) < 90
    rest = rk.collect_sync("light.yaml", "tasks.jsonl", output="out.jsonl", num_repeats=30)
    list(rest)
    assert rest.status == 0 and rest.metrics["counts"]["rollouts"] == 90
    with pytest.raises(rk.ConfigError, match=r"missing\.yaml"):
        list(rk.collect_sync("missing.yaml", "tasks.jsonl"))


def test_rollouts_become_a_table(light: Path) -> None:
    pandas = pytest.importorskip("pandas")
    outcomes = list(rk.collect_sync("light.yaml", "tasks.jsonl", output="out.jsonl"))
    table = rk.load("out.jsonl").to_pandas()
    assert isinstance(table, pandas.DataFrame) and len(table) == len(outcomes) == 3
    assert {"task_id", "reward", "text", "output_tokens"} <= set(table.columns)


def test_lines_of_other_programs_are_skipped(folder: Path) -> None:
    (folder / "mixed.jsonl").write_text('not json\n{"a": 1}\n' + json.dumps([1]) + "\n")
    assert list(rk.load("mixed.jsonl")) == []


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = "import sys, rollout_kit; print(len([n for n in sys.modules if '.' not in n]))"
    heavy = "print({'pydantic', 'fastapi', 'orjson', 'asyncio', 'yaml'} & set(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", f"{program}; {heavy}"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "set()"


def test_every_public_name_is_there() -> None:
    for name in dir(rk):
        assert getattr(rk, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'colect'"):
        rk.colect  # noqa: B018
