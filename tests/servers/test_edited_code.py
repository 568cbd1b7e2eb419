"""A notebook: one Python process in which a verifier is edited between two runs."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support import read_jsonl, row, write_jsonl

import rollout_kit as rk
from rollout_kit.serving import registry

APP = """
from rollout_kit import ResourcesServer, VerifyRequest, VerifyResponse
from .rule import reward
USED


class Edited(ResourcesServer):
    reverify = "stateless"

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(reward())
"""

CONFIG = """
policy_model:
  responses_api_models:
    simulated_model: {}
edited:
  resources_servers:
    edited: {}
edited_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: edited}
      model_server: {type: responses_api_models, name: policy_model}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resources_servers/edited").mkdir(parents=True)
    write_app(tmp_path)
    write_rule(tmp_path, "0.25")
    (tmp_path / "run.yaml").write_text(CONFIG)
    write_jsonl(tmp_path / "tasks.jsonl", [row("q")])
    return tmp_path


def write_app(folder: Path, used: str = "") -> None:
    (folder / "resources_servers/edited/app.py").write_text(APP.replace("USED", used))


def write_rule(folder: Path, value: str, second: int = 0) -> None:
    """Write the rule; the time of the file is within one second for all of the same length."""
    path = folder / "resources_servers/edited/rule.py"
    path.write_text(f"def reward():\n    return {value}\n")
    os.utime(path, ns=(1_700_000_000_000_000_000 + second, 1_700_000_000_000_000_000 + second))


async def collect(servers: Any, name: str) -> float:
    run = rk.collect(servers, "tasks.jsonl", output=f"{name}.jsonl")
    async for _ in run:
        pass
    assert run.metrics is not None
    return run.metrics["reward"]


async def reverify(servers: Any, name: str) -> float:
    run = rk.reverify(servers, "first.jsonl", output=f"{name}.jsonl")
    async for _ in run:
        pass
    return read_jsonl(Path(f"{name}.jsonl"))[0]["reward"]


async def with_servers(act: Any, name: str) -> float:
    async with rk.servers("run.yaml") as servers:
        return await act(servers, name)


def test_the_next_run_has_the_edited_code_and_its_modules(folder: Path) -> None:
    assert asyncio.run(with_servers(collect, "first")) == 0.25
    write_rule(folder, "0.75", 1)
    assert asyncio.run(with_servers(reverify, "second")) == 0.75
    write_rule(folder, "0.50", 2)
    assert asyncio.run(with_servers(collect, "third")) == 0.5
    same = registry.load("resources_servers", "edited")
    assert registry.load("resources_servers", "edited") is same


def test_servers_that_run_on_are_not_used_with_other_code_than_their_files_have(
    folder: Path,
) -> None:
    async def edit_meanwhile() -> None:
        async with rk.servers("run.yaml") as servers:
            assert await collect(servers, "first") == 0.25
            write_rule(folder, "0.75", 3)
            for act in (collect, reverify):
                with pytest.raises(rk.ConfigError, match=r"rule.py of 'edited' changed"):
                    await act(servers, "again")
        assert await with_servers(reverify, "again") == 0.75

    asyncio.run(edit_meanwhile())


@pytest.mark.parametrize("used", ["import shared_rules", "from shared_rules import bonus"])
def test_a_module_that_others_may_use_is_an_error(
    folder: Path, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "shared_rules", raising=False)
    shared = folder / "shared_rules.py"
    shared.write_text("def bonus(): return 0\n")
    write_app(folder, used)
    assert asyncio.run(with_servers(collect, "first")) == 0.25
    shared.write_text("def bonus(): return 10\n")
    with pytest.raises(rk.ConfigError, match=r"shared_rules.py has changed .* start the process"):
        asyncio.run(with_servers(reverify, "second"))
    monkeypatch.delitem(sys.modules, "shared_rules", raising=False)
