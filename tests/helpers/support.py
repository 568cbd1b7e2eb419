"""Shared by the tests: one small environment, and a whole collection over it in one call."""

import asyncio
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rollout_kit.api.testing import Over, ScriptedModel, making, mount
from rollout_kit.collecting.schedule import Schedule, Work
from rollout_kit.collecting.slot import Slot
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.commands.progress import Progress
from rollout_kit.commands.reverify import reverify_through
from rollout_kit.config.keys import CollectConfig, ReverifyConfig
from rollout_kit.config.load import Config
from rollout_kit.launch.reach import Servers
from rollout_kit.responses import output_text
from rollout_kit.serving import registry
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.serving.sandbox.container import Container, ContainerConfig
from rollout_kit.serving.transport.cassette import Cassette
from rollout_kit.serving.workers.pool import WorkerPool
from rollout_kit.store.lines import info_of
from rollout_kit.types import (
    Attempt,
    JsonObject,
    Key,
    Outcome,
    RolloutInfo,
    VerifyRequest,
    VerifyResponse,
)

HANG_S = 120.0
"""Nothing that works takes as long, on any machine: what does hangs."""


OF_OTHERS = {"mcp_environment", "openenv_environment", "reward_model"}
"""Environments that another program is: without its address they cannot be made. Their own tests
start such programs."""


def skip_unless_installed(*packages: str) -> None:
    """Skip a file of tests if a package is missing. To import it would take each test process up to
    a second."""
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)


def begin_by(work: Callable[[Attempt, Slot], Coroutine[Any, Any, Outcome]]) -> Work:
    """Attempts as tasks of their own."""
    return lambda attempt, slot: asyncio.get_running_loop().create_task(work(attempt, slot))


async def outcomes_of(schedule: Schedule) -> AsyncGenerator[Outcome, None]:
    """Drive a schedule; its outcomes one by one."""
    batches = schedule.batches()
    try:
        async for batch in batches:
            for outcome in batch:
                yield outcome
    finally:
        await batches.aclose()


def use_model(cls: Any, scenario: Callable[[Any], Coroutine[Any, Any, Any]], **config: Any) -> Any:
    """Run `scenario(model)` with a started model server of this class, stopped afterwards."""

    async def main() -> Any:
        model = cls(cls.Config(**config), peers=None, name="policy_model")
        await model.start()
        try:
            return await scenario(model)
        finally:
            await model.stop()

    return asyncio.run(main())


def limit_only(endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only a worker's call about this text have the deadline that is configured: no other may
    run into it, however slow the machine is."""
    call = WorkerPool.call

    async def patient(pool: WorkerPool, *arguments: Any) -> Any:
        deadline_s = pool.deadline_s
        if endless not in str(arguments):
            pool.deadline_s = HANG_S
        try:
            return await call(pool, *arguments)
        finally:
            pool.deadline_s = deadline_s

    monkeypatch.setattr(WorkerPool, "call", patient)


def slow(*values: Any) -> Any:
    """A case that only `make test-slow` runs, because it takes much longer than the others."""
    return pytest.param(*values, marks=pytest.mark.slow)


class EchoRequest(VerifyRequest):
    expected: str


class Echo(ResourcesServer):
    """Full reward for saying `expected`."""

    async def verify(self, body: EchoRequest) -> VerifyResponse:
        said = output_text(body.response)
        return body.scored(reward=float(said == body.expected), said=said, length=len(said))


def row(question: str, expected: str | None = None, **more: Any) -> dict[str, Any]:
    asked = {"input": [{"role": "user", "content": question}]}
    return {"responses_create_params": asked, "expected": expected or question, **more}


def asked(params: dict[str, Any]) -> str:
    """What the user's last message says."""
    return params["input"][-1]["content"]


def output_file(sidecar: str = "", stem: str = "rollouts") -> str:
    """The name of the main file of an output, or of one of its sidecars."""
    return f"{stem}.d/{sidecar}.jsonl" if sidecar else f"{stem}.jsonl"


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in rows]
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines))
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def count_turns(folder: Path) -> int:
    """The stored turns of rollouts in progress, without what came back for them."""
    lines = read_jsonl(folder / "rollouts.d/turns.jsonl")
    return sum("response" in (line["turn"] or ()) for line in lines)


def eventually(holds: Callable[[], object]) -> None:
    """Wait until it holds."""
    give_up = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < give_up, "it did not come true"
        time.sleep(0.02)


def read_process(pid: int | str, name: str) -> str:
    """A file of /proc about a process; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends while it is read
        return ""


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    stat = read_process(pid, "stat")
    return bool(stat) and stat.rsplit(")", 1)[1].split()[0] != "Z"


BLOCK = re.compile(
    r"(?:<!-- not run here: (?P<reason>.*?) -->\n)?"
    r"^```(?P<language>\w*)(?: (?P<file>\S+))?\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    reason: str | None
    language: str
    file: str | None
    text: str


def blocks(document: str) -> list[Block]:
    return [Block(**match.groupdict()) for match in BLOCK.finditer(document)]


NO_NAMESPACES = "namespaces are not allowed here, so no sandbox can hold anything"


def may_isolate() -> bool:
    """Whether this machine lets anybody, or us, have namespaces at all."""
    if sys.platform != "linux" or not shutil.which("unshare"):
        return False
    asked = [["unshare", flag, "true"] for flag in ("--net", "--user")]
    return any(subprocess.run(each, capture_output=True).returncode == 0 for each in asked)


def container_keys() -> dict[str, Any]:
    """The image of ROLLOUT_KIT_CONTAINER, for what runs in a real engine. _ENGINE names the engine,
    _OPTIONS further words that this machine needs."""
    if "ROLLOUT_KIT_CONTAINER" not in os.environ:
        return {}
    return {
        "container_image": os.environ["ROLLOUT_KIT_CONTAINER"],
        "container_engine": os.environ.get("ROLLOUT_KIT_ENGINE"),
        "container_options": os.environ.get("ROLLOUT_KIT_CONTAINER_OPTIONS", "").split(),
    }


def find_container() -> Container | None:
    return ContainerConfig(**container_keys()).container


def config_of(folder: Path, **keys: Any) -> Config:
    given = {
        "input_jsonl_fpath": str(folder / "tasks.jsonl"),
        "output_jsonl_fpath": folder / "rollouts.jsonl",
        "fsync": "exit",
        **keys,
    }
    return Config(CollectConfig.model_validate(given), {}, {}, {}, {}, frozenset())


def made(key: Key, line: dict[str, Any] | None = None) -> tuple[RolloutInfo, dict[str, Any]]:
    """The head and the line of an outcome; what `line` leaves out is as small as can be."""
    block = {"task_id": key.task_id, "scope": key.scope, "rollout_index": key.rollout_index}
    given = line or {}
    whole = {
        "agent_ref": {"name": key.agent},
        "_ng_task_index": 0,
        **given,
        "rollout": {**block, **given.get("rollout", {})},
    }
    return info_of(whole), whole


class Bench:
    """A folder with tasks, a model and a verifier to collect with; says what came of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model: Any = ScriptedModel(asked)
        self.collects_over: Over = "local"
        self.verifier: Callable[..., Any] = making(Echo)
        self.out = io.StringIO()
        self.agent_settings: dict[str, Any] = {}
        self.other_agents: list[str] = []
        self.others: dict[str, Any] = {}
        """Servers that are added, or stand in for one of the usual ones."""
        self.cassette: Cassette | None = None

    async def collect(
        self, rows: list[Any] | None = None, /, *, through: Any = collect_through, **keys: Any
    ) -> int:
        if rows is not None:
            write_jsonl(self.folder / "tasks.jsonl", rows)
        agent = registry.load("responses_api_agents", "simple_agent")
        wiring = {"resources_server": {"name": "echo"}, "model_server": {"name": "policy_model"}}
        servers = {
            "policy_model": lambda peers, name: self.model,
            "echo": self.verifier,
        }
        agents = ["echo_agent", *self.other_agents]
        servers |= {name: making(agent, **wiring, **self.agent_settings) for name in agents}
        servers |= self.others
        self.out = io.StringIO()
        async with mount(servers, self.collects_over, self.cassette) as peers:
            given, models = keys.pop("default_params", {}), keys.pop("models", [])
            reached = Servers(peers, agents, given, {}, models=models)
            as_json = keys.get("json", False)
            progress = Progress(as_json=as_json, out=self.out, err=io.StringIO())
            config = config_of(self.folder, **keys)
            return await through(reached, config, ["+the=command"], progress)

    def lines(self, sidecar: str = "") -> list[dict[str, Any]]:
        return read_jsonl(self.folder / output_file(sidecar))

    def keys(self) -> list[tuple[str, int]]:
        """(question, rollout index) of every rollout on disk, sorted."""
        return sorted(
            (asked(line["responses_create_params"]), line["rollout"]["rollout_index"])
            for line in self.lines()
        )

    def metrics(self) -> dict[str, Any]:
        return json.loads((self.folder / "rollouts_aggregate_metrics.json").read_text())


class Desk(Bench):
    """A bench whose rollouts are verified again, with nobody there but the verifier."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.verifiers: dict[str, Any] = {}
        self.names: dict[str, str | None] = {"echo_agent": "echo"}
        self.over: Over = "local"

    async def reverify(self, **keys: Any) -> int:
        given = {
            "input_jsonl_fpath": str(self.folder / "rollouts.jsonl"),
            "output_jsonl_fpath": self.folder / "new.jsonl",
            "fsync": "exit",
            **keys,
        }
        config = Config(ReverifyConfig.model_validate(given), {}, {}, {}, {}, frozenset())
        self.out = io.StringIO()
        progress = Progress(out=self.out, err=io.StringIO())
        async with mount({"echo": self.verifier, **self.verifiers}, self.over) as peers:
            servers = Servers(peers, [], {}, {})
            return await reverify_through(servers, self.names, config, ["+the=command"], progress)

    def new(self, sidecar: str = "") -> list[JsonObject]:
        return read_jsonl(self.folder / output_file(sidecar, "new"))

    def new_metrics(self) -> JsonObject:
        return json.loads((self.folder / "new_aggregate_metrics.json").read_text())


def forget_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the process without a home folder, as a user id that the system does not know."""

    def find_nobody(uid: int) -> Any:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", find_nobody)
