"""Which code and libraries a verdict is of: in each line, in ng_status, and after an edit."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint, says
from support import Echo, asked, row
from workplace import Workplace, said_until

from rollout_kit.api.testing import making, mount
from rollout_kit.serving import fingerprint, registry
from rollout_kit.serving.fingerprint import RELEASE, LoadedCode
from rollout_kit.session import VERIFIER, Session, entered
from rollout_kit.types import JsonObject

ROOT = Path(__file__).resolve().parents[2]
APP = """
import xmltodict
from rollout_kit import ResourcesServer

class Env(ResourcesServer):
    def verify(self, task, response):
        return 1.0
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "env/app.py"
    path.parent.mkdir()
    path.write_text(APP)
    return path


def parts_of(app: Path) -> JsonObject:
    return LoadedCode(app).describe({})


def test_a_fingerprint_has_the_code_and_the_libraries_that_it_imports(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xmltodict")
    before = parts_of(app)
    assert before["libraries"].keys() == {"xmltodict"}
    monkeypatch.setattr(fingerprint, "version", lambda name: "99")
    assert parts_of(app) == {**before, "libraries": {"xmltodict": "99"}}
    app.write_text(APP.replace("1.0", "0.5"))
    assert parts_of(app)["code"] != before["code"]


def test_a_release_with_the_same_verdicts_keeps_the_fingerprint(app: Path) -> None:
    fingerprint.main([str(app.parent)])
    released = parts_of(app)
    assert released["code"] == "env 1"
    app.write_text(APP + "\n# a better comment\n")
    assert parts_of(app)["code"] not in ("env 1", "")  # an edit, until it is released
    fingerprint.main([str(app.parent)])
    assert parts_of(app) == released
    release = app.with_name(RELEASE)
    release.write_text(release.read_text().replace('"version": 1', '"version": 2'))
    assert parts_of(app)["code"] == "env 2"


def test_an_edit_after_loading_changes_nothing_but_is_named(app: Path) -> None:
    code = LoadedCode(app)
    before = code.describe({})
    (app.parent / "tests").mkdir()
    (app.parent / "tests/test_app.py").write_text("")
    assert code.list_changed() == []
    app.write_text(APP + "x = 1\n")
    (app.parent / "helper.py").write_text("")
    assert code.list_changed() == ["app.py", "helper.py"]
    assert code.describe({}) == before


def test_a_file_that_python_cannot_read_is_part_of_the_code_too(app: Path) -> None:
    (app.parent / "broken.py").write_text("def (:\n")
    assert parts_of(app)["code"]


@pytest.mark.parametrize("name", registry.implementations("resources_servers", ROOT))
def test_the_released_code_of_a_verifier_is_this_one(name: str) -> None:
    folder = ROOT / "resources_servers" / name
    assert LoadedCode(folder / "app.py").describe({})["code"].startswith(f"{name} "), (
        f"run: python -m rollout_kit.serving.fingerprint {folder}; and raise 'version' in its"
        f" {RELEASE} if any verdict differs from those of the code before"
    )


def test_verdicts_of_different_servers_have_different_fingerprints() -> None:
    async def main() -> set[str]:
        names = registry.implementations("resources_servers", ROOT)
        plain = [name for name in names if name in ("mcqa", "string_match", "calculator")]
        servers = {n: making(registry.load("resources_servers", n)) for n in plain}
        async with mount(servers) as peers:
            return {(await peers.describe(name))["verifier"] for name in plain}

    assert len(asyncio.run(main())) == 3


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    with endpoint(says(asked)) as model:
        yield Workplace(tmp_path, model)


def edit(workplace: Workplace) -> None:
    app = workplace.folder / "resources_servers/echo/app.py"
    app.write_text(app.read_text() + "\n# edited\n")
    os.utime(app, (1, 1))  # a file system may have the same time for both


def status_of(workplace: Workplace, port: int) -> dict[str, Any]:
    argv = (f"+head_server.port={port}", "+json=true")
    _, said = workplace.run("status", *argv)
    [echo] = [each for each in json.loads(said)["servers"] if each["name"] == "echo"]
    return echo


def collect(workplace: Workplace, port: int, number: int) -> str:
    workplace.tasks(number)
    argv = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]
    argv += ["+agent_name=echo_agent", f"+head_server.port={port}"]
    status, said = workplace.run("collect_rollouts", *argv)
    assert status == 0, said
    return said


def test_an_edit_is_said_and_the_loaded_code_goes_on(workplace: Workplace) -> None:
    with workplace.ng_run() as (process, port, _):
        before = status_of(workplace, port)
        assert len(before["verifier"]) == 16 and not before["changed_files"]
        edit(workplace)
        assert "echo/app.py changed: server 'echo' goes on with the code" in said_until(
            process, "warning: "
        )
        after = status_of(workplace, port)
        assert after["changed_files"] == ["app.py"] and after["verifier"] == before["verifier"]
        assert "warning: app.py of 'echo' changed after it was started" in collect(
            workplace, port, 2
        )
    assert {line["rollout"]["verifier"] for line in workplace.lines()} == {before["verifier"]}
    manifest = json.loads((workplace.folder / "out/rollouts.d/run.json").read_text())
    assert manifest["verifier_parts"] == {before["verifier"]: before["verifier_parts"]}


def test_with_reload_an_edit_restarts_the_server(workplace: Workplace) -> None:
    with workplace.ng_run("+reload=true") as (process, port, _):
        before = status_of(workplace, port)
        collect(workplace, port, 1)
        edit(workplace)
        assert "echo/app.py changed: restarting server 'echo'" in said_until(process, "is back")
        after = status_of(workplace, port)
        assert after["verifier"] != before["verifier"] and not after["changed_files"]
        assert "1 rollout on disk carry verdicts of an older verifier" in collect(
            workplace, port, 2
        )
    found = [line["rollout"]["verifier"] for line in workplace.lines()]
    assert found == [before["verifier"], after["verifier"]]


def test_code_that_cannot_be_loaded_restarts_nothing(workplace: Workplace) -> None:
    with workplace.ng_run("+reload=true") as (process, port, _):
        app = workplace.folder / "resources_servers/echo/app.py"
        app.write_text("def (:\n")
        said = said_until(process, "is not restarted")
        assert "app.py cannot be loaded" in said
        collect(workplace, port, 1)


def test_a_verdict_of_a_restarted_server_names_its_verifier() -> None:
    """The collector has asked for the fingerprint before; it must not write the old one."""

    async def main() -> list[str]:
        async with mount({"echo": making(Echo)}, "http") as peers:
            request = {**row("q"), "response": {"output": []}}
            found = []
            for is_restarted in (False, True):
                Echo.is_restarted = is_restarted
                session = Session()
                with entered(session):
                    await peers.verify("echo", request)
                found.append(session.stats.get(VERIFIER, ""))
            assert found[1] == (await peers.describe("echo"))["verifier"]
            return found

    try:
        assert asyncio.run(main())[0] == ""
    finally:
        Echo.is_restarted = False
