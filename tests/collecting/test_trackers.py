"""The way to a tracker: the run never waits for it, newer figures win, and what is lost is said."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from support import HANG_S, Bench, alive, made, read_jsonl, row

from rollout_kit.collecting.trackers import installed, outbox
from rollout_kit.collecting.trackers.link import Link, Message
from rollout_kit.collecting.trackers.mlflow_worker import flatten, legal
from rollout_kit.collecting.trackers.outbox import Backlog, Latest
from rollout_kit.collecting.trackers.scalars import TableSample, final_figures, only_numbers
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.config import load
from rollout_kit.config.keys import ExportConfig
from rollout_kit.errors import RolloutError
from rollout_kit.secrets import secret_values
from rollout_kit.types import Failure, Key, Rollout, Unverified

collect_rollouts = as_function("ng_collect_rollouts")

WORKER = """
import json, os, pathlib, time
folder = pathlib.Path(__file__).parent

def act(settings, state, what, sent):
    with (folder / "calls.jsonl").open("a") as stream:
        stream.write(json.dumps([what, sent, state, os.getpid()]) + "\\n")
    if (folder / "broken").exists():
        raise ConnectionError("no route to " + settings["address"])
    while (folder / "stuck").exists() or (folder / f"stuck_{what}").exists():
        time.sleep(0.01)
    return {"state": {"run": 7}, "notes": [] if state else ["Fake: run 7"]}
"""
"""A tracker that notes what it is asked, and fails or hangs while a file is there."""


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, run in an event loop of its own."""

    @wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


class Tracker:
    """The fake, a link to it, and what people were told."""

    def __init__(self, folder: Path, box: Latest | Backlog) -> None:
        self.folder, self.said = folder, list[str]()
        (folder / "fake_worker.py").write_text(WORKER)
        path = str(folder / "fake_worker.py")
        settings = {"address": "nowhere"}
        self.link = Link(
            "Fake", path, settings, box, lambda text, **_: self.said.append(text), 0.01
        )

    def calls(self, what: str = "") -> list[Any]:
        return [call for call in read_jsonl(self.folder / "calls.jsonl") if what in ("", call[0])]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(HANG_S):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def rollout(index: int, **line: Any) -> Rollout:
    return Rollout(*made(Key("t", "a", "", index), {"response": {"output": []}, **line}))


@in_loop
async def test_newer_figures_replace_those_that_wait(tmp_path: Path) -> None:
    box = Latest()
    tracker = Tracker(tmp_path, box)
    (tmp_path / "stuck").touch()
    tracker.link.start()
    box.put(1, {"a": 1})
    await tracker.until(tracker.calls)
    for step in range(2, 50):
        box.put(step, {"a": step})
    (tmp_path / "stuck").unlink()
    await tracker.until(lambda: box.peek() is None)
    await tracker.link.close([Message("end", {}, "the end")], HANG_S)
    sent = [call[1].get("step") for call in tracker.calls()]
    assert sent == [1, 49, None] and tracker.said == ["Fake: run 7"]
    assert [call[2] for call in tracker.calls()] == [{}, {"run": 7}, {"run": 7}]


@in_loop
async def test_a_tracker_that_fails_is_one_warning_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout_kit.collecting.trackers.link.RETRY_S", 0.01)
    box = Latest()
    tracker = Tracker(tmp_path, box)
    (tmp_path / "broken").touch()
    tracker.link.start()
    box.put(1, {"a": 1})
    await tracker.until(lambda: len(tracker.calls()) > 2)
    (tmp_path / "broken").unlink()
    await tracker.until(lambda: box.peek() is None)
    await tracker.link.close([], HANG_S)
    assert tracker.said == [
        "warning: Fake: ConnectionError: no route to nowhere; the collection goes on without it",
        "Fake: run 7",
    ]


@in_loop
async def test_what_is_not_sent_in_time_is_said_and_the_process_ends(tmp_path: Path) -> None:
    box = Latest()
    tracker = Tracker(tmp_path, box)
    tracker.link.start()
    box.put(1, {"a": 1})
    await tracker.until(lambda: box.peek() is None)
    (tmp_path / "stuck_table").touch()
    last = [Message(what, {}, f"the {what}") for what in ("table", "files")]
    await tracker.link.close(last, 0.2)
    assert tracker.said == ["Fake: run 7", "warning: Fake: not sent: the table, the files"]
    pids = {call[3] for call in tracker.calls()}
    assert not any(alive(pid) for pid in pids)


@in_loop
async def test_a_tracker_that_hangs_from_the_start_loses_everything_and_says_it(
    tmp_path: Path,
) -> None:
    box = Backlog()
    tracker = Tracker(tmp_path, box)
    (tmp_path / "stuck").touch()
    tracker.link.start()
    for index in range(250):
        box.take(rollout(index))
    await tracker.until(tracker.calls)
    await tracker.link.close([Message("end", {}, "the end")], 0.2)
    assert tracker.said[-1] == "warning: Fake: not sent: 250 rollouts, the end"


@in_loop
async def test_a_hurry_ends_the_wait(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path, Latest())
    (tmp_path / "stuck").touch()
    tracker.link.start()
    closing = asyncio.create_task(tracker.link.close([Message("end", {}, "the end")], HANG_S))
    await tracker.until(tracker.calls)
    tracker.link.hurry()
    tracker.link.hurry()
    await closing
    assert tracker.said[-1] == "warning: Fake: not sent: the end"


@in_loop
async def test_batches_that_are_left_in_the_end_are_counted(tmp_path: Path) -> None:
    box = Backlog()
    tracker = Tracker(tmp_path, box)
    tracker.link.every_s = HANG_S
    tracker.link.start()
    await asyncio.sleep(0)
    for index in range(250):
        box.take(rollout(index))
    (tmp_path / "stuck").touch()
    await tracker.link.close([], 0.2)
    assert tracker.said[-1] == "warning: Fake: not sent: 250 rollouts"


@in_loop
async def test_a_killed_process_is_replaced_and_goes_on_with_the_run(tmp_path: Path) -> None:
    box = Latest()
    tracker = Tracker(tmp_path, box)
    tracker.link.start()
    box.put(1, {"a": 1})
    await tracker.until(lambda: box.peek() is None)
    os.kill(tracker.calls()[0][3], signal.SIGKILL)
    box.put(2, {"a": 2})
    await tracker.until(lambda: box.peek() is None)
    await tracker.link.close([], HANG_S)
    first, *_, last = tracker.calls()
    assert first[3] != last[3] and last[2] == {"run": 7} and tracker.said == ["Fake: run 7"]


@in_loop
async def test_rollouts_wait_in_their_order_and_further_ones_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_LINES", 120)
    box = Backlog()
    tracker = Tracker(tmp_path, box)
    for index in range(130):
        box.take(rollout(index))
    tracker.link.start()
    await tracker.until(lambda: box.peek() is None)
    box.take(rollout(130))
    await tracker.link.close([], HANG_S)
    lines = [json.loads(line) for call in tracker.calls("lines") for line in call[1]]
    found = [line["rollout"]["rollout_index"] for line in lines]
    assert found == [*range(120), 130] and tracker.said[-1].endswith("not sent: 10 rollouts")


def test_memory_of_waiting_rollouts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_BYTES", 10_000)
    box = Backlog()
    for index in range(20):
        box.take(rollout(index, text="x" * 3_000))
    assert box.num_dropped == 16
    while (message := box.peek()) is not None:
        box.remove(message)
    box.take(rollout(20))
    assert box.num_dropped == 16 and box.peek()


def test_every_end_of_a_rollout_is_a_line_once() -> None:
    key, box = Key("t", "a", "", 0), Backlog()
    error = RolloutError("no")
    box.take(Unverified(*made(key)))
    box.take(Unverified(*made(key), error=error))
    box.take(Failure(key, 0, error, [{"class": "PeerError", "message": "no"}]))
    message = box.peek()
    assert message and len(message.content) == 2
    assert json.loads(message.content[1])["failure"]["message"] == "no"


def test_a_table_draws_from_all_rollouts() -> None:
    seen = set()
    sample = TableSample(10)
    for index in range(1000):
        sample.take(rollout(index, reward=1.0))
    table = sample.table()
    assert table and len(table["rows"]) == 10
    seen = {each[table["columns"].index("rollout_index")] for each in table["rows"]}
    assert len(seen) == 10 and max(seen) > 100
    assert TableSample(0).table() is None and TableSample(5).table() is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("final/pass@1", "final/pass_at_1"),
        ("reward/arm/T=0.5, süß", "reward/arm/T_0.5_ s__"),
        ("errors/../../x", "errors/_/_/x"),
        ("a//b", "a/_/b"),
        ("x" * 500, "x" * 250),
    ],
)
def test_every_name_becomes_legal_in_mlflow(name: str, expected: str) -> None:
    assert legal(name) == expected


def test_only_finite_numbers_are_figures() -> None:
    found = {"a": 1, "b": None, "c": float("nan"), "d": float("inf"), "e": "x", "f": True}
    assert only_numbers(found) == {"a": 1, "f": True}
    metrics = {"metrics": {"reward": 0.5, "none": None}, "pass_at_k": {"1": 0.5}}
    metrics |= {"intervals": {"reward": [0.4, None]}}
    assert final_figures(metrics) == {
        "final/reward": 0.5,
        "final/reward_low": 0.4,
        "final/pass@1": 0.5,
    }
    assert flatten({"a": {"b": 1, "c": "x"}, "d": []}) == [("a.b", "1"), ("a.c", "x"), ("d", "[]")]


@pytest.mark.parametrize("extra", ["wandb", "mlflow", "otel", "prometheus"])
def test_a_missing_package_is_named_before_anything_starts(
    extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(installed.MODULES, extra, "a_package_of_another_planet")
    switch = {"prometheus": "metrics_port=0"}.get(extra) or f"{extra}.{installed.SWITCHES[extra]}=x"
    config = Path(__file__).parents[2] / "configs/quickstart.yaml"
    words = [f"+config_paths=[{config}]", "+input_jsonl_fpath=none.jsonl", f"+{switch}"]
    with pytest.raises(SystemExit) as ended:
        collect_rollouts([*words, "+output_jsonl_fpath=out.jsonl"])
    said = capsys.readouterr().err
    assert ended.value.code == 1 and f"rollout-kit[{extra}]" in said
    assert switch.partition("=")[0] in said and not (tmp_path / "out.jsonl").exists()


def test_no_tracker_s_package_is_imported_unless_its_keys_are_given() -> None:
    code = (
        "import sys, rollout_kit.commands.collect_rollouts,"
        " rollout_kit.commands.export, rollout_kit.launch.head_server\n"
        "heavy = {'wandb', 'mlflow', 'opentelemetry.sdk', 'prometheus_client'}\n"
        "print({*sys.modules} & heavy)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == "set()", found.stderr


@in_loop
async def test_keys_without_their_switch_are_said_to_have_no_effect(bench: Bench) -> None:
    assert await bench.collect([row("a")], wandb={"entity": "team"}, otel={"content": True}) == 0
    said = bench.out.getvalue()
    assert "wandb: nothing is sent: wandb.project is not given" in said
    assert "otel: nothing is sent: otel.endpoint is not given" in said


@in_loop
async def test_what_a_tracker_says_is_masked(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of an SDK quote the address, with the password in it."""
    worker = tmp_path / "quoting_worker.py"
    worker.write_text("def act(settings, *_):\n    raise OSError(str(settings))\n")
    start = Link.start

    def start_other(link: Link) -> None:
        link.worker = str(worker)
        start(link)

    monkeypatch.setattr(Link, "start", start_other)
    headers = {"x-key": "tr0ub4dor-and-3"}
    keys = {"otel": {"endpoint": "http://me:hunter2-hunter2@x", "headers": headers}}
    assert await bench.collect([row("a")], **keys) == 0
    said = bench.out.getvalue()
    assert "warning: OpenTelemetry: OSError" in said and "not sent: 1 rollout" in said
    assert "hunter2" not in said and "tr0ub4dor" not in said


def test_keys_of_trackers_have_no_effect_in_python() -> None:
    from rollout_kit.api.arguments import OF_COMMANDS

    assert {"wandb", "mlflow", "otel", "metrics_port"} <= OF_COMMANDS


def test_long_rollouts_are_sent_in_small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "BATCH_BYTES", 5_000)
    box = Backlog()
    for index in range(5):
        box.take(rollout(index, text="x" * 3_000))
    found = []
    while (message := box.peek()) is not None:
        found.append(len(message.content))
        box.remove(message)
    assert found == [2, 2, 1]


def test_an_error_of_the_system_is_a_warning_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process can be started: too many are there."""

    async def fail(*_: Any) -> None:
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr("rollout_kit.collecting.trackers.link.WorkerPool.call", fail)
    keys = {"otel": {"endpoint": "http://x"}}
    assert asyncio.run(bench.collect([row("a")], **keys)) == 0
    assert "warning: OpenTelemetry: Resource temporarily" in bench.out.getvalue()


def test_the_configuration_reaches_a_tracker_without_its_secrets(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "noting_worker.py"
    noting = "pathlib.Path(__file__).with_suffix('.json').write_text(json.dumps(settings))"
    lines = ["import json, pathlib", "def act(settings, *_):", f"    {noting}"]
    worker.write_text("\n".join([*lines, "    return {'state': {}, 'notes': []}", ""]))
    start = Link.start

    def start_other(link: Link) -> None:
        link.worker = str(worker)
        start(link)

    async def with_secrets(servers: Any, config: Any, *given: Any) -> int:
        values = {
            "policy_api_key": "tr0ub4dor-and-3",
            "policy_base_url": "http://me:hunter2-hunter2@host/v1?key=battery-staple",
            "policy_model_name": "gpt",
            "headers": {"x-auth": "correct-horse"},
        }
        known = replace(config, values=values, secrets=secret_values(values))
        argv = ["+policy_api_key=tr0ub4dor-and-3", *given[0]]
        return await collect_through(servers, known, argv, *given[1:])

    monkeypatch.setattr(Link, "start", start_other)
    keys = {"mlflow": {"experiment": "x"}}
    assert asyncio.run(bench.collect([row("a")], through=with_secrets, **keys)) == 0
    sent = worker.with_suffix(".json").read_text()
    for secret in ("tr0ub4dor", "hunter2", "battery-staple", "correct-horse"):
        assert secret not in sent
    assert json.loads(sent)["config"]["policy_model_name"] == "gpt"
    assert "ng_collect_rollouts" in json.loads(sent)["config"]["rollout_kit"]["command"]


@pytest.mark.parametrize("text", ["5", "Basic dXNlcjpwdw==", "a, b", "true", "(x"])
def test_any_text_is_a_value_in_a_mapping_of_texts(text: str) -> None:
    words = [f"+otel.headers.x-key={text}", f"+otel.headers.other={text}"]
    keys = load.parse_keys(words, ExportConfig)
    assert keys.otel.headers == {"x-key": text, "other": text}
