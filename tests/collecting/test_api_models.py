"""Models that a program names by text: a provider and its model, or the URL of an endpoint."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from endpoint import served

import rollout_kit as rk
from rollout_kit.api.given import Given
from rollout_kit.api.model_names import ask_name, find_model
from rollout_kit.config.keys import CollectConfig
from rollout_kit.config.load import load

ROWS = [{"responses_create_params": {"input": "Say 4."}}]


def app_of(names: Sequence[str], prefix: str = "/v1") -> web.Application:
    """An endpoint that lists its models, and answers with the name of the one that is asked."""

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in names]})

    async def chat(request: web.Request) -> web.Response:
        said = (await request.json())["model"]
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response({"id": "1", "model": said, "choices": [choice], "usage": usage})

    app = web.Application()
    app.router.add_get(f"{prefix}/models", models)
    app.router.add_post(f"{prefix}/chat/completions", chat)
    return app


def said_by(task: Any, response: Any) -> dict[str, Any]:
    return {"reward": 1.0, "said": rk.output_text(response)}


@pytest.mark.parametrize("end", ["/v1", "", "/"])
def test_the_only_model_of_a_url_is_found_with_or_without_its_version(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with served(app_of(["only"])) as url:
        for model in (url + end, rk.Endpoint(url + end)):
            [found] = rk.collect_sync(ROWS, model=model, verify=said_by).table()
            assert found.line["said"] == "only"


def test_a_url_with_several_models_or_none_says_what_to_write() -> None:
    with served(app_of(["first", "second"])) as url, pytest.raises(rk.ConfigError) as found:
        asyncio.run(ask_name(f"{url}/v1"))
    assert f"Endpoint('{url}/v1', 'first')" in str(found.value)
    assert "first, second" in str(found.value)
    with served(app_of(["x"], "/elsewhere")) as url, pytest.raises(rk.ConfigError) as found:
        asyncio.run(ask_name(url))
    assert f"{url}/models: status 404; {url}/v1/models: status 404" in str(found.value)
    with pytest.raises(rk.ConfigError, match="must start with http"):
        asyncio.run(ask_name(rk.Endpoint("localhost:8000")))


def test_a_named_endpoint_is_not_asked() -> None:
    endpoint = rk.Endpoint("http://127.0.0.1:1/v1", "named")
    assert asyncio.run(ask_name(endpoint)) is endpoint


def test_a_provider_s_model_takes_any_name_of_a_server() -> None:
    source = find_model("openai/gpt-9", "judge_model", "judge")
    [(path, content)] = source.files.items()
    assert path.endswith("openai_model/configs/openai.yaml")
    settings = content["judge_model"]["responses_api_models"]["openai_model"]
    assert settings["openai_model"] == "gpt-9"
    assert settings["openai_api_key"] == "${OPENAI_API_KEY}"
    assert content["OPENAI_API_KEY"] == "${oc.env:OPENAI_API_KEY}"
    assert "policy_model" not in content
    assert "policy_model_name" not in content
    with pytest.raises(rk.ConfigError, match="judge: 'gpt-9' is no provider/model"):
        find_model("gpt-9", "judge_model", "judge")


def test_the_key_of_a_provider_may_stand_in_env_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "env.yaml").write_text("OPENAI_API_KEY: sk-of-env-yaml\n")
    program = Given("openai/gpt-9", environment="string_match").program((), {})
    settings = load([], CollectConfig, tmp_path, program).instances["policy_model"].settings
    assert settings["openai_api_key"] == "sk-of-env-yaml"
    assert settings["openai_model"] == "gpt-9"
