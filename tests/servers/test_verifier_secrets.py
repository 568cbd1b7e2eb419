"""A resources server in a process of its own holds no key and no token of the run."""

import json
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint, says
from held import find_held
from support import asked, read_process
from test_supervision import status, through
from workplace import Workplace

from rollout_kit.config.instances import Instance
from rollout_kit.launch.holdings import find_named, plan_of, warn_of_variables
from rollout_kit.serving.process_tree import family
from rollout_kit.serving.transport.access import accepted_by, digest_of, token_for

if sys.platform != "linux":
    pytest.skip("needs /proc", allow_module_level=True)

KEY, TOKEN, OTHER, OF_ECHO, INHERITED = (f"sk-{secrets.token_hex(20)}" for _ in range(5))

VERIFIER = """
import os
from pathlib import Path

from rollout_kit import ResourcesServer, ResourcesServerConfig, VerifyRequest, VerifyResponse
from rollout_kit import WorkerPool, output_text


class Row(VerifyRequest):
    expected: str


class Config(ResourcesServerConfig):
    judge_api_key: str = ""


class Echo(ResourcesServer):
    Config = Config

    def __init__(self, config, peers, name):
        super().__init__(config, peers, name)
        self.pool = WorkerPool(Path(__file__).with_name("rule.py"), "rule")

    async def verify(self, body: Row) -> VerifyResponse:
        if body.expected == "ask":
            hello = {"input": [{"content": "hello"}]}
            await self.peers.call("policy_model", "/v1/responses", hello)
        if body.expected == "quote":
            named = os.environ.get("NAMED_API_KEY")
            raise RuntimeError(f"my key is {self.config.judge_api_key} {named}")
        equal = await self.pool.call(output_text(body.response), body.expected)
        found = {name: os.environ.get(name) for name in ("GIVEN", "NAMED_API_KEY")}
        return body.scored(float(equal), **found)
"""

CONFIG = """
config_paths: [responses_api_models/openai_model/configs/openai_model.yaml]
echo:
  resources_servers:
    echo: {placement: process, KEYS}
other:
  resources_servers:
    echo: {placement: process, judge_api_key: "${other_key}"}
echo_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: echo}
      model_server: {type: responses_api_models, name: policy_model}
"""

ROW = {"responses_create_params": {"input": "?"}, "response": {"output": []}}


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OPENAI_API_KEY", INHERITED)
    monkeypatch.setenv("NAMED_API_KEY", INHERITED)
    with endpoint(says(asked)) as model:
        place = Workplace(tmp_path, model)
        folder = tmp_path / "resources_servers/echo"
        (folder / "app.py").write_text(VERIFIER)
        (folder / "rule.py").write_text("def rule(a, b): return a == b\n")
        env = {"base_url": model.url, "api_key": KEY, "model_name": "m"}
        text = "".join(f"policy_{name}: {value}\n" for name, value in env.items())
        text += f"auth_token: {TOKEN}\nother_key: {OTHER}\necho_key: {OF_ECHO}\n"
        (tmp_path / "env.yaml").write_text(text)
        write(place)
        place.tasks(2)
        yield place


def write(workplace: Workplace, keys: str = "session_timeout_s: 600") -> None:
    (workplace.folder / "run.yaml").write_text(CONFIG.replace("KEYS", keys))


def ask(url: str, row: dict[str, Any], token: str = "") -> tuple[int, str]:
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, json.dumps({**ROW, **row}).encode(), headers)
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def held_by(servers: list[dict[str, Any]], name: str) -> set[str]:
    """Which of the planted texts the server or one of its workers holds."""
    [server] = [each for each in servers if each["name"] == name]
    pids = family(server["pid"])
    assert any("child.py" in read_process(pid, "cmdline") for pid in pids), "it has a worker"
    planted = [KEY, TOKEN, OTHER, OF_ECHO, INHERITED]
    return {text for pid in pids for _, text in find_held(pid, planted)}


def test_a_verifier_holds_neither_keys_nor_the_token(workplace: Workplace) -> None:
    with workplace.ng_run() as (_, port, said):
        code, output = workplace.run("collect_rollouts", *through(port))
        assert code == 0, output
        assert [line["reward"] for line in workplace.lines()] == [1.0, 1.0]
        servers = status(workplace, port)
        assert {each["health"] for each in servers} == {"ok"}
        assert held_by(servers, "echo") == set()
        [own] = [each["pid"] for each in servers if each["name"] == "policy_model"]
        assert {KEY, INHERITED} <= {text for _, text in find_held(own, [KEY, INHERITED])}
    assert "warning: echo names the environment variable NAMED_API_KEY" in said
    assert "env: {NAMED_API_KEY: '${oc.env:NAMED_API_KEY}'}" in said
    assert "OPENAI_API_KEY" not in said


def test_a_verifier_holds_what_its_own_keys_give_it_and_masks_it(workplace: Workplace) -> None:
    env = 'env: {NAMED_API_KEY: "${oc.env:NAMED_API_KEY}", GIVEN: "1"}'
    write(workplace, f'judge_api_key: "${{echo_key}}", {env}')
    with workplace.ng_run() as (_, port, said):
        code, output = workplace.run("collect_rollouts", *through(port))
        assert code == 0, output
        assert [line["GIVEN"] for line in workplace.lines()] == ["1", "1"]
        servers = status(workplace, port)
        assert held_by(servers, "echo") == {OF_ECHO, INHERITED}
        [url] = [each["url"] for each in servers if each["name"] == "echo"]
        _, error = ask(f"{url}/verify", {"expected": "quote"})
        assert "my key is ****" in error and OF_ECHO not in error and INHERITED not in error
    assert "warning: echo names" not in said


def test_a_verifier_reaches_the_servers_that_its_keys_name(workplace: Workplace) -> None:
    write(workplace, "judge: policy_model")
    with workplace.ng_run() as (_, port, _):
        urls = {each["name"]: each["url"] for each in status(workplace, port)}
        code, said = ask(f"{urls['echo']}/verify", {"expected": "ask"})
        assert code == 200, said
        code, said = ask(f"{urls['other']}/verify", {"expected": "ask"})
        assert (
            "no server is called 'policy_model'" in said
            and "reaches those that its keys name" in said
        )
        assert held_by(status(workplace, port), "echo") == set(), "its token opens one server"


def test_a_server_on_all_interfaces_refuses_a_wrong_token(workplace: Workplace) -> None:
    with workplace.ng_run("+default_host=0.0.0.0") as (_, port, _):
        code, output = workplace.run("collect_rollouts", *through(port))
        assert code == 0, output
        urls = {each["name"]: each["url"] for each in status(workplace, port)}
        url = f"{urls['echo']}/verify"
        for right in (TOKEN, token_for("echo", TOKEN)):
            assert ask(url, {"expected": "x"}, right)[0] == 200
        for wrong in ("", "wrong", digest_of(TOKEN), token_for("other", TOKEN)):
            assert ask(url, {"expected": "x"}, wrong)[0] == 401


def test_only_code_that_reads_variables_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("_", "MY_API_KEY", "MY_OTHER_KEY", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    code = {
        "reads": "import os\nread = os.environ['MY_API_KEY'], os.getenv('_', 'OMP_NUM_THREADS')\n",
        "names": "read = {'MY_API_KEY': 1}\n",
    }
    for name, text in code.items():
        folder = tmp_path / "resources_servers" / name
        folder.mkdir(parents=True)
        (folder / "app.py").write_text(text)
    given = Instance("given", "resources_servers", "reads", {}, env={"MY_API_KEY": "x"})
    made = [Instance(name, "resources_servers", name, {}) for name in code]
    assert [line.split(",")[0] for line in warn_of_variables([*made, given])] == [
        "warning: reads names the environment variable MY_API_KEY"
    ]


def test_a_server_is_given_digests_of_tokens() -> None:
    accepted = accepted_by("echo", TOKEN)
    assert accepted == [digest_of(token_for("echo", TOKEN)), digest_of(TOKEN)]
    assert TOKEN not in str(accepted) and token_for("echo", TOKEN) not in str(accepted)


@pytest.mark.parametrize(
    ("implementation", "settings", "named"),
    [
        ("mcqa", {}, set()),
        ("equivalence_llm_judge", {}, {"policy_model"}),
        ("math_with_verify", {"should_use_judge": False}, set()),
        ("no_such_server", {"judges": [{"type": "x", "name": "judge"}]}, {"judge"}),
        ("no_such_server", {"judge": "judge"}, {"judge"}),
    ],
)
def test_a_plan_has_the_servers_that_the_settings_name(
    implementation: str, settings: dict[str, Any], named: set[str]
) -> None:
    names = ["own", "policy_model", "judge", "agent"]
    own = Instance("own", "resources_servers", implementation, settings)
    assert find_named(own, names) == named
    each = dict.fromkeys(names, "x")
    plan = {
        **{"urls": each, "tokens": each, "timeouts_s": each, "types": each, "http": {}},
        **{"run_id": "r", "token": TOKEN, "by_rollout": ["policy_model"], "tapes": {}},
    }
    part = plan_of(plan, [own])
    assert part["urls"].keys() == named | {"own"}
    assert part["tokens"].keys() == named
    assert "token" not in part
    agent = Instance("agent", "responses_api_agents", "simple_agent", {})
    assert plan_of(plan, [own, agent])["urls"] == each
