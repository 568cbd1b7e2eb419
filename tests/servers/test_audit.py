"""ng_audit_verifier: a verifier with a fault is caught at it, and a sound one is not."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from support import alive, eventually, slow, write_jsonl

from rollout_kit.api.testing import ScriptedModel, making
from rollout_kit.authoring import audit_run
from rollout_kit.authoring.audit_run import WATCH
from rollout_kit.authoring.audit_stage import audit
from rollout_kit.commands.audit_verifier import add_config
from rollout_kit.config.keys import AuditConfig
from rollout_kit.config.load import load
from rollout_kit.errors import ConfigError
from rollout_kit.serving import registry
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.peers import Peers

audit_verifier = as_function("ng_audit_verifier")

APP = """
import asyncio, datetime, email.utils, random, re, socket, time
from pathlib import Path
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.responses import output_text
from rollout_kit.serving.workers.pool import WorkerPool

class Env(ResourcesServer):
    seen = set()
    number = 0
    pool = None

    async def verify(self, task, response):
        said, truth = output_text(response), task["expected_answer"]
        right = float(re.findall("is ([^ ]+), as", said)[-1:] == [truth])
{rule}
"""

RULES = {
    "sound": "return {'reward': right, 'took_s': time.perf_counter()}",
    "random": "return right if said == task['gold_output'] else random.random()",
    "yes": "return 1.0",
    "no": "return 0.0",
    "any_label": "return float(bool(re.search('sentiment is [a-z]+', said)))",
    "label": "return float(said.split(' is ')[-1].split(',')[0] == truth)",
    "remembers": "new = said not in self.seen; self.seen.add(said); return right * new",
    "mixes_up": (
        "Env.number += 1; mine = Env.number; await asyncio.sleep(0.001);"
        " return right * (mine == Env.number)"
    ),
    "asks": (
        "\n        try: socket.create_connection(('127.0.0.1', PORT), 1).close()"
        "\n        except OSError: return 0.0"
        "\n        return right"
    ),
    "out_of_date": "return right * ('YEAR' in email.utils.formatdate())",
    "hashes": "return hash(said) % 1000 / 1000",
    "has_several": (
        "mark = Path(__file__).with_name('slept')"
        "\n        if len(said) > 100_000 and not mark.exists():"
        "\n            mark.touch()"
        "\n            await asyncio.sleep(6)"
        "\n        Env.pool = Env.pool or WorkerPool(Path(__file__).with_name('worker.py'), 'work')"
        "\n        dated = await self.pool.call()"
        "\n        return right * dated * (datetime.datetime.now().year > 2000) * (said[0] != '')"
    ),
    "hangs": "re.fullmatch('(a|a)*b', said[:40]); return right",
}

WORKER = "import time\n\ndef work():\n    return float(time.time() > 0)\n"


def labelled(label: str) -> dict[str, Any]:
    gold = f"The sentiment is {label}, as anybody can see."
    asked = {"input": "What is the sentiment?"}
    return {"responses_create_params": asked, "expected_answer": label, "gold_output": gold}


def row(number: int) -> dict[str, Any]:
    gold = f"It is {number}, as anybody can see."
    asked = {"input": f"What is {number - 1} + 1?"}
    return {"responses_create_params": asked, "expected_answer": f"{number}", "gold_output": gold}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of somebody who takes every call."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    listening.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=answer, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, port: int) -> Path:
    """A working folder with a server for each rule."""
    place = tmp_path_factory.mktemp("audit")
    for name, rule in RULES.items():
        rule = rule.replace("PORT", f"{port}").replace("YEAR", time.strftime("%Y"))
        app = place / f"resources_servers/{name}/app.py"
        app.parent.mkdir(parents=True)
        app.write_text(APP.format(rule=f"        {rule}"))
        app.with_name("worker.py").write_text(WORKER)
    blocks = {name: {"resources_servers": {name: None}} for name in RULES}
    (place / "all.yaml").write_text(json.dumps(blocks))
    write_jsonl(place / "rows.jsonl", [row(42), row(58)])
    write_jsonl(place / "labels.jsonl", [labelled("positive"), labelled("negative")])
    return place


@pytest.fixture(scope="module")
def found(folder: Path) -> Callable[[str], dict[str, Any]]:
    """What the audit of a server says."""

    @cache
    def find(name: str) -> dict[str, Any]:
        rows = "labels" if "label" in name else "rows"
        argv = ["+config_paths=[all.yaml]", f"+input_jsonl_fpath={rows}.jsonl"]
        slow_s, limit_s = {"has_several": (5, 60), "hangs": (2, 3)}.get(name, (60, 60))
        argv += [f"+resources_server_name={name}", f"+slow_s={slow_s}"]
        argv += [f"+verify_timeout_s={limit_s}"]
        argv += [f"+num_rows={2 if name == 'sound' else 1}"]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            return asyncio.run(audit(load(argv, AuditConfig), lambda line: None))

    return find


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("sound", {}),
        ("random", {"not deterministic": "scored differently in an identical process"}),
        ("yes", {"always 1": "for every answer"}),
        slow("no", {"always 0": "for every answer", "misses gold": "'row 1, gold'"}),
        ("any_label", {"accepts changed labels": "'row 1, changed label'"}),
        slow("label", {}),
        ("remembers", {"leaks state between sessions": "again in the same process"}),
        ("mixes_up", {"leaks state between sessions": "32 were verified at once"}),
        ("asks", {"reads the network": "connect 127.0.0.1:"}),
        slow("out_of_date", {"reads the clock": "scored differently 400 days later"}),
        slow("hashes", {"misses gold": "row 1", "differs after a restart": "another hash seed"}),
        (
            "has_several",
            {
                "raises on malformed": "IndexError",
                "slow on long answers": "'row 1, long, then gold'",
                "reads the clock": "time.time at worker.py:4, in work, datetime.now at app.py:",
            },
        ),
        ("hangs", {"slow on long answers": "it did not return over 'row 1, adversarial"}),
    ],
)
def test_a_fault_is_named_and_no_other(
    found: Callable[[str], dict[str, Any]], name: str, flags: dict[str, str]
) -> None:
    said = {each["flag"]: each["evidence"] for each in found(name)["flags"]}
    if name in ("any_label", "hashes"):  # any label, or luck: both can be gamed in many ways
        said = {flag: said[flag] for flag in said if not flag.startswith("rewards ")}
    assert said.keys() == flags.keys(), said
    assert [part for flag, part in flags.items() if part not in said[flag]] == []


def test_the_figures_say_what_was_seen(found: Callable[[str], dict[str, Any]]) -> None:
    sound = found("sound")
    assert (sound["accuracy_on_gold"], sound["is_deterministic"], sound["rows"]) == (1.0, True, 2)
    assert sound["kinds"]["changed"]["mean_reward"] == sound["kinds"]["empty"]["mean_reward"] == 0
    assert sound["kinds"]["long, then gold"]["full"] == 2
    assert sound["kinds"]["another row's gold"]["mean_reward"] == 0
    assert "took_s" in sound["remarks"][0]
    assert 0 < sound["latency_s"]["p50"] <= sound["latency_s"]["max"]
    asked = [each["evidence"] for each in found("asks")["flags"]]
    assert "scored differently without network" in asked[0]


def test_the_command_prints_a_table_and_fails_on_a_flag(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    words = ["+config_paths=[all.yaml]", "+resources_server_name=yes", "+num_rows=1"]
    with pytest.raises(SystemExit) as ended:
        audit_verifier([*words, "+input_jsonl_fpath=rows.jsonl", "+output_fpath=a/audit.json"])
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "Accuracy on gold: 1.000" in said and "FLAG always 1: for every answer" in said
    assert json.loads(Path("a/audit.json").read_text())["flags"][0]["flag"] == "always 1"


def test_a_file_that_is_no_audit_is_not_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    before = (folder / "rows.jsonl").read_bytes()
    words = ["+config_paths=[all.yaml]", "+resources_server_name=yes", "+num_rows=1"]
    with pytest.raises(SystemExit) as ended:
        audit_verifier([*words, "+input_jsonl_fpath=rows.jsonl", "+output_fpath=rows.jsonl"])
    assert ended.value.code == 1
    assert "rows.jsonl exists, and is no earlier audit: remove it" in capsys.readouterr().err
    assert (folder / "rows.jsonl").read_bytes() == before


JUDGED = """
from rollout_kit.serving.resources_server import ResourcesServer, ResourcesServerConfig
from rollout_kit.responses import output_text
from rollout_kit.serving.service import ServerRef

class Config(ResourcesServerConfig):
    judge: ServerRef

class Judged(ResourcesServer):
    Config = Config

    async def verify(self, task, response):
        asked = {"input": output_text(response)[:1000]}
        said = await self.peers.call(self.config.judge.name, "/v1/responses", asked, dict)
        return float(task["expected_answer"] in output_text(said))
"""


def test_a_judge_that_the_configuration_names_may_be_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    app = folder / "resources_servers/judged/app.py"
    app.parent.mkdir(exist_ok=True)
    app.write_text(JUDGED)

    judge = ScriptedModel(lambda params: str(params["input"]))
    sock = bound_socket("127.0.0.1", 0)
    blocks = {
        "judged": {"resources_servers": {"judged": {"judge": {"name": "the_judge"}}}},
        "the_judge": {"responses_api_models": {"some_model": {"placement": url_of(sock)}}},
    }
    Path("judged.yaml").write_text(json.dumps(blocks))
    argv = ["+config_paths=[judged.yaml]", "+input_jsonl_fpath=rows.jsonl", "+num_rows=1"]

    async def main() -> dict[str, Any]:
        async with judge.serving(sock):
            return await audit(load(argv, AuditConfig), lambda line: None)

    found = asyncio.run(main())
    assert (found["flags"], found["accuracy_on_gold"]) == ([], 1.0)
    assert "only Python was kept from the network" in found["remarks"][0]


WAITS = """
import os, time
from pathlib import Path
from rollout_kit.serving.resources_server import ResourcesServer

class Waits(ResourcesServer):
    async def verify(self, task, response):
        Path("begun.part").write_text(str(os.getpid()))
        Path("begun.part").rename("begun")
        time.sleep(3600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_audit_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    app = tmp_path / "resources_servers/waits/app.py"
    app.parent.mkdir(parents=True)
    app.write_text(WAITS)
    (tmp_path / "waits.yaml").write_text('{"waits": {"resources_servers": {"waits": null}}}')
    write_jsonl(tmp_path / "rows.jsonl", [row(42)])
    command = str(Path(sys.executable).with_name("ng_audit_verifier"))
    words = ["+config_paths=[waits.yaml]", "+input_jsonl_fpath=rows.jsonl"]
    begun = tmp_path / "begun"
    with subprocess.Popen([command, *words], cwd=tmp_path) as parent:
        eventually(begun.exists)
        child = int(begun.read_text())
        assert alive(child)
        parent.send_signal(number)
    eventually(lambda: not alive(child))


def test_a_verifier_that_runs_elsewhere_is_judged_by_its_verdicts_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    server = making(registry.load("resources_servers", "remembers"))

    sock = bound_socket("127.0.0.1", 0)
    block = {"resources_servers": {"of_somebody": {"placement": url_of(sock)}}}
    Path("elsewhere.yaml").write_text(json.dumps({"elsewhere": block}))
    argv = ["+config_paths=[elsewhere.yaml]", "+input_jsonl_fpath=rows.jsonl", "+num_rows=1"]

    async def main() -> dict[str, Any]:
        async with server(Peers({}), "elsewhere").serving(sock):
            return await audit(load(argv, AuditConfig), lambda line: None)

    found = asyncio.run(main())
    assert [each["flag"] for each in found["flags"]] == ["leaks state between sessions"]
    assert "it runs elsewhere" in found["remarks"][0]


def test_the_watch_leaves_dates_what_they_are(tmp_path: Path) -> None:
    code = """
import copy, datetime as d, json, pickle, time
import os, orjson, pydantic
from datetime import date, datetime

class Row(pydantic.BaseModel):
    at: datetime
    on: date

class Own(datetime):
    pass

row = Row(at="2026-01-02T03:04:05", on="2026-01-02")
made = datetime(2026, 1, 2, 3, 4, 5)
assert row.at == made == datetime.fromisoformat("2026-01-02T03:04:05") and row.on == made.date()
assert isinstance(made, datetime) and isinstance(made, date) and not isinstance(row.on, datetime)
assert issubclass(datetime, date) and isinstance(Own(2026, 1, 2), Own) and not isinstance(made, Own)
assert pickle.loads(pickle.dumps([made, row.on])) == copy.deepcopy([made, row.on])
assert orjson.loads(orjson.dumps([made, d.datetime.now()]))[0] == "2026-01-02T03:04:05"
assert os.environ["CUSTOM"] == "as ever"
print(json.dumps([time.time(), time.time_ns() / 1e9, datetime.now(d.UTC).timestamp(),
    time.mktime(time.localtime()), datetime.combine(date.today(), d.time()).timestamp()]))
"""
    plan = {"log": str(tmp_path / "log"), "shift_s": 10**8, "deny": True}
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['CUSTOM'] = 'as ever'\n")
    path = [str(WATCH), str(Path(audit_run.__file__).parents[2]), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "ROLLOUT_KIT_WATCH": json.dumps(plan)}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    aheads = [each - time.time() for each in json.loads(said.stdout)]
    assert all(10**8 - 60 < ahead < 10**8 + 60 for ahead in aheads[:4])
    assert abs(aheads[4] - 10**8) < 86_401
    assert not (tmp_path / "log").exists(), "none of it was in the watched folder"


def test_an_entrypoint_stands_for_its_configuration() -> None:
    given = ["+entrypoint=resources_servers/mcqa", "+num_rows=3"]
    path = "+config_paths=[resources_servers/mcqa/configs/mcqa.yaml]"
    assert add_config(given) == [*given, path]
    assert add_config([path, *given]) == [path, *given]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["+resources_server_name=remember"], "did you mean 'remembers'"),
        ([], "which resources server"),
        (["+resources_server_name=yes"], "known to be correct"),
        (["+resources_server_name=yes", "+input_jsonl_fpath=no.jsonl"], "no input file no.jsonl"),
        (["+resources_server_name=yes", "+input_jsonl_fpath=all.yaml"], "no row of"),
    ],
)
def test_what_cannot_be_audited_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], reason: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=reason):
        config = load(["+config_paths=[all.yaml]", *more], AuditConfig)
        asyncio.run(audit(config, lambda line: None))
