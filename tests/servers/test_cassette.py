"""Calls that are recorded, and played back instead: the same rollouts, and nothing is sent."""

import asyncio
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from support import config_of, read_jsonl, row, write_jsonl

from rollout_kit.api.testing import Over, ScriptedModel, call_response, making, mount
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.commands.progress import Progress
from rollout_kit.errors import ConfigError, TaskError, ToolError
from rollout_kit.launch.reach import Servers
from rollout_kit.responses import output_text
from rollout_kit.serving import registry
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.serving.transport.cassette import Cassette, Tapes
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

ROWS = [row(f"q{number}") for number in range(50)]
NUM_REPEATS = 10


class Ticker(ResourcesServer):
    """A tool that never answers the same twice, and fails for one task in ten."""

    reverify = "stateless"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.executed = 0

    @tool
    async def tick(self, task: int) -> str:
        """The next number."""
        self.executed += 1
        if task % 10 == 0:
            raise ToolError("out of numbers")
        return f"tick {self.executed}"

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(float(output_text(body.response).endswith("7")))


class Pedant(Ticker):
    """The same tools with another verdict."""

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(0.25)


class Tally(Ticker):
    """Its verdict depends on what its tool left behind."""

    reverify = "replay"

    async def seed_session(self, body: JsonObject) -> JsonObject:
        self.state = {"ticks": 0}
        return {}

    @tool
    async def tick(self, task: int) -> str:
        """Count."""
        self.executed += 1
        self.state["ticks"] += 1
        return "ticked"

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(float(self.state["ticks"] == 2))


class Studio:
    """A folder with tasks, where a run is collected under one cassette or another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tape = folder / "tape"
        self.verifier: type[Ticker] = Ticker
        self.model = ScriptedModel(self._answer)
        self.server: Ticker
        self._count = itertools.count()
        write_jsonl(folder / "tasks.jsonl", ROWS)

    def _answer(self, params: JsonObject) -> Any:
        question = str(params["input"][0]["content"])
        if question == "q3":
            raise TaskError("the prompt is too long")
        said = sum(item.get("type") == "function_call_output" for item in params["input"])
        if said < 2:
            return call_response(("tick", json.dumps({"task": int(question[1:])})))
        return f"{question}: {next(self._count)}"

    def collect(self, output: str, over: Over = "local", **tapes: bool) -> int:
        """The exit status."""
        return asyncio.run(self._collect(output, over, **tapes))

    async def _collect(
        self, output: str, over: Over, *, record: bool = False, replay: bool = False
    ) -> int:
        agent = registry.load("responses_api_agents", "simple_agent")
        wiring = {"resources_server": {"name": "ticker"}, "model_server": {"name": "policy_model"}}

        def verifier(peers: Any, name: str) -> Ticker:
            self.server = self.verifier(self.verifier.Config(), peers, name)
            return self.server

        servers = {
            "policy_model": lambda peers, name: self.model,
            "ticker": verifier,
            "agent": making(agent, **wiring),
        }
        tape = self.tape
        tapes = Tapes.at(tape if record else None, tape if replay else None)
        cassette = Cassette(Tapes(tapes.record, tapes.replay, ["policy_model"]))
        async with mount(servers, over, cassette) as peers:
            return await collect_through(
                Servers(peers, ["agent"], {}, {}),
                config_of(
                    self.folder,
                    output_jsonl_fpath=self.folder / f"{output}.jsonl",
                    num_repeats=NUM_REPEATS,
                    max_failed_fraction=0.02,
                    max_attempts=1,
                ),
                [],
                Progress(out=io.StringIO(), err=io.StringIO()),
            )

    def rows(self, output: str) -> dict[tuple[str, int], JsonObject]:
        """By key, ids and times apart."""
        return {
            (line["rollout"]["task_id"], line["rollout"]["rollout_index"]): _lasting(line)
            for line in read_jsonl(self.folder / f"{output}.jsonl")
        }


def _lasting(value: Any) -> Any:
    if isinstance(value, list):
        return [_lasting(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _lasting(each)
        for name, each in value.items()
        if name not in ("id", "started_at") and not name.endswith("_s")
    }


@pytest.fixture
def studio(tmp_path: Path) -> Studio:
    return Studio(tmp_path)


def test_a_recorded_run_plays_back_without_a_call(studio: Studio, over: Over) -> None:
    studio.collect("live", record=True)
    asked, live = len(studio.model.calls), studio.rows("live")
    assert len(live) == 490 and studio.server.executed == 980
    status = studio.collect("played", over, replay=True)
    assert status == 0 and studio.rows("played") == live
    assert len(studio.model.calls) == asked and studio.server.executed == 0
    refused = read_jsonl(studio.folder / "played.d/failures.jsonl")
    assert {line["failure"]["message"] for line in refused} == {"the prompt is too long"}


def test_another_verifier_costs_nothing(studio: Studio) -> None:
    studio.collect("live", record=True)
    asked = len(studio.model.calls)
    studio.verifier = Pedant
    studio.collect("played", replay=True)
    assert {line["reward"] for line in studio.rows("played").values()} == {0.25}
    assert len(studio.model.calls) == asked


def test_a_tool_that_a_verdict_depends_on_is_really_called(studio: Studio) -> None:
    studio.verifier = Tally
    studio.collect("live", record=True)
    studio.collect("played", replay=True)
    assert studio.server.executed == 980
    assert {line["reward"] for line in studio.rows("played").values()} == {1.0}


def test_what_is_missing_fails_or_with_record_goes_live_once(studio: Studio) -> None:
    studio.collect("live", record=True)
    write_jsonl(studio.folder / "tasks.jsonl", [*ROWS, row("q77")])
    asked = len(studio.model.calls)
    assert studio.collect("sealed", replay=True) != 0
    assert len(studio.model.calls) == asked and len(studio.rows("sealed")) == 490
    missing = read_jsonl(studio.folder / "sealed.d/failures.jsonl")[-1]["failure"]
    assert "is not among those recorded" in missing["message"] and not missing["terminal"]
    assert studio.collect("sealed", replay=True, record=True) == 0
    assert len(studio.model.calls) == asked + 3 * NUM_REPEATS
    studio.collect("again", replay=True)
    assert len(studio.model.calls) == asked + 3 * NUM_REPEATS
    assert studio.rows("again") == studio.rows("sealed")


def test_of_a_call_that_is_made_again_the_latest_recording_stands(studio: Studio) -> None:
    studio.collect("first", record=True)
    studio.collect("second", record=True)
    assert studio.rows("first") != studio.rows("second")
    studio.collect("played", replay=True)
    assert studio.rows("played") == studio.rows("second")


def test_a_recording_cut_anywhere_lacks_one_call(studio: Studio) -> None:
    studio.collect("live", record=True)
    [path] = studio.tape.glob("*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    studio.collect("played", replay=True, record=True)
    assert len(studio.rows("played")) == 490
    assert path.read_bytes().count(b"\n") == whole.count(b"\n") + 1


def test_a_folder_without_recordings_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no recorded call is in there .calls\*\.jsonl"):
        Cassette(Tapes(replay=str(tmp_path)))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"record=.*file: cannot write calls.jsonl"):
        Cassette(Tapes(record=str(tmp_path / "file")))
