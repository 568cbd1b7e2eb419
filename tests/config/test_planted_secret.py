"""Secrets planted in every place that takes one, looked for in everything that a run leaves."""

import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from endpoint import endpoint
from support import HANG_S, asked, read_process
from test_supervision import status, through
from workplace import Workplace

from rollout_kit.api.testing import text_response
from rollout_kit.serving.process_tree import family

KEY, JUDGE_KEY, TOKEN, NESTED, HEADER, COOKIE, CODE, UNUSED, NOTE = PLANTED = [
    f"sk-planted-{name}-0123456789"
    for name in (
        *("key", "judge", "token", "nested", "header", "cookie", "code", "unused", "note/+"),
    )
]


def spelled(secret: str) -> list[str]:
    """The secret as a URL, Base64 (inside of a longer text) and a cut-off text spell it."""
    coded = [base64.b64encode(f"{user}:{secret}".encode()).decode() for user in ("a", "bc", "def")]
    whole = [secret, quote(secret), quote(secret, safe=""), *coded]
    return [*whole, *(text.replace("+", "-").replace("/", "_") for text in coded)]


LEFT = {text[-20:-4] for secret in PLANTED for text in spelled(secret)} | {
    secret[:19] for secret in PLANTED
}
"""What must be found nowhere: pieces of every spelling, without the ends that may be cut off."""

CARELESS = """
import logging, sys

from rollout_kit.serving.resources_server import ResourcesServer, ResourcesServerConfig
from rollout_kit.types import JsonObject


class Config(ResourcesServerConfig):
    judge_api_key: str
    judge: JsonObject


class Careless(ResourcesServer):
    Config = Config

    async def start(self):
        print("starting with", self.config)
        logging.warning("the judge is %s", self.config.judge)

    def verify(self, task, response):
        if "bad" in str(task):
            raise RuntimeError(f"the judge refuses {self.config.judge_api_key}")
        return 1.0
"""

CONFIG = f"""
config_paths: [responses_api_models/openai_model/configs/openai_model.yaml]
policy_model:
  responses_api_models:
    openai_model:
      openai_default_headers: {{x-api-key: {HEADER}, Cookie: {COOKIE}, x-title: a-test}}
careless:
  resources_servers:
    careless:
      judge_api_key: ${{careless_api_key}}
      judge: {{url: 'http://localhost', note: "${{my_pw}}", headers: {{secret: {NESTED}}}}}
careless_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {{type: resources_servers, name: careless}}
      model_server: {{type: responses_api_models, name: policy_model}}
"""


def quotes_the_key(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """As hosted services, gateways and echo servers do."""
    sent = " ".join(text for secret in (KEY, HEADER, COOKIE, CODE) for text in spelled(secret))
    if "refused" in asked(body):
        message = f"Incorrect API key provided: {KEY} {sent} {HEADER[:-3]}… {CODE[:-3]}"
        return 400, {"error": {"message": message}}
    response = text_response(f"fine, with {sent}")
    response["output"][0]["generation_token_ids"] = [1, 2, 3]
    return 200, {**response, "metadata": {"headers": sent, "nested": {KEY: json.dumps(sent)}}}


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    with endpoint(quotes_the_key) as model:
        place = Workplace(tmp_path, model)
        (tmp_path / "resources_servers/careless").mkdir()
        (tmp_path / "resources_servers/careless/app.py").write_text(CARELESS)
        (tmp_path / "run.yaml").write_text(CONFIG)
        url = f"{model.url}?code={CODE}&api-version=2024-10-21"
        values = {"base_url": url, "api_key": KEY, "model_name": "m"}
        env = "".join(f"policy_{name}: {value}\n" for name, value in values.items())
        env += f"careless_api_key: {JUDGE_KEY}\nauth_token: {TOKEN}\n"
        env += f"unused_pw: {UNUSED}\nmy_pw: {NOTE}\n"
        (tmp_path / "env.yaml").write_text(env)
        yield place


def fetched(url: str, token: str) -> str:
    """A route's whole answer, whatever its status."""
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    texts = []
    for data in (None, b"{}"):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as reply:
                texts.append(f"{reply.headers}{reply.read().decode()}")
        except urllib.error.HTTPError as error:
            texts.append(f"{error.headers}{error.read().decode()}")
    return "".join(texts)


def shown(pids: set[int]) -> str:
    return "".join(read_process(pid, "cmdline") for pid in pids)


def test_no_secret_is_left_anywhere(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(workplace.folder / "state"))
    workplace.tasks(3)
    tasks = workplace.folder / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace("q1", "q1 bad").replace("q2", "q2 refused"))
    seen = {}
    for command in ("validate", "dump_config"):
        _, seen[command] = workplace.run(command, "+config_paths=[run.yaml]")
    _, seen["collected in one process"] = workplace.collect()
    with workplace.ng_run() as (run, port, said):
        seen["ng_run"] = said
        argv = through(port, "+resume=fresh")
        _, seen["collected through ng_run"] = workplace.run("collect_rollouts", *argv)
        _, seen["ng_status"] = workplace.run("status", f"+head_server.port={port}")
        seen["command lines"] = shown(family(run.pid).keys() | {os.getpid()})
        head = f"http://127.0.0.1:{port}"
        for url in {head, *(each["url"] for each in status(workplace, port))}:
            for path in ("/", "/health", "/tools", "/v1/models", "/load", "/openapi.json", "/nope"):
                seen[f"{url}{path}"] = fetched(url + path, TOKEN)
            refused = '{"input": [{"role": "user", "content": "refused"}]}'
            seen[f"{url} refusing"] = _posted(f"{url}/v1/responses", refused)
            seen[f"{url} verdict"] = _posted(
                f"{url}/verify", '{"responses_create_params": {"input": "bad"}, "response": {}}'
            )
        for path in ("/global_config_dict_yaml", "/server_instances"):
            seen[f"head {path}"] = fetched(head + path, TOKEN)
        _, seen["ng_stop"] = workplace.run("stop", f"+head_server.port={port}")
        seen["ng_run, later"], _ = run.communicate(timeout=HANG_S)
    files = [path for path in workplace.folder.rglob("*") if path.is_file()]
    for path in files:
        seen[str(path)] = path.read_text(errors="replace")
    for given in ("env.yaml", "run.yaml"):
        del seen[str(workplace.folder / given)]
    assert any("careless.log" in place for place in seen), "the logs were looked at"
    assert any("rollouts.d/failures.jsonl" in place for place in seen)
    assert "Incorrect API key provided: ****" in str(seen), "and the refusal came through"
    assert "the judge refuses ****" in str(seen)
    assert workplace.model.requests[0][1]["x-api-key"] == HEADER
    lines = workplace.lines()
    assert [line["rollout"]["masked"] for line in lines] == [True]
    assert "fine, with ****" in str(lines)
    assert "token_ids" not in str(lines)
    assert "x-title: a-test" in seen["dump_config"]
    assert "api-version=2024-10-21" in seen["dump_config"]
    found = [
        (place, text[max(0, text.index(key) - 60) : text.index(key) + 30])
        for place, text in seen.items()
        for key in LEFT
        if key in text
    ]
    assert not found, "\n".join(map(str, found))


def _posted(url: str, body: str) -> str:
    request = urllib.request.Request(url, body.encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def test_the_token_s_file_is_its_user_s_alone_and_goes_with_the_run(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(workplace.folder / "state"))
    with workplace.ng_run() as (process, port, _):
        [path] = (workplace.folder / "state/rollout_kit/runs").iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        code, said = workplace.run("stop", f"+head_server.port={port}")
        assert code == 0, said
        process.wait(HANG_S)
    assert not path.exists()


def test_a_secret_typed_on_the_command_line_is_taken_with_a_warning(workplace: Workplace) -> None:
    code, said = workplace.run("validate", "+config_paths=[run.yaml]", f"+policy_api_key={KEY}")
    assert code == 0 and "warning: " in said and "env.yaml" in said, said
    assert KEY not in said
