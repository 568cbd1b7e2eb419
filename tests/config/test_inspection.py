"""What `ng_validate` finds out about servers without starting one."""

import json
from pathlib import Path

import pytest
from command import as_function

from rollout_kit.serving import registry

validate = as_function("ng_validate")

VERIFIES = """
from rollout_kit.serving.resources_server import ResourcesServer, tool


class Mine(ResourcesServer):
    def verify(self, task, response):
        return self.config.get("bonus") or 1.0
"""

HAS_NO_VERIFY = VERIFIES.replace("verify(self, task", "check(self, task")

SPEAKS_FOR_ITSELF = """
from fastapi import FastAPI

from rollout_kit.serving.resources_server import ResourcesServer


class Mine(ResourcesServer):
    def build_app(self, run_id=""):
        return FastAPI()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resources_servers/mine").mkdir(parents=True)
    return tmp_path


def validated(code: str, keys: str = "{}", model: str = "simulated_model: {}") -> int | str | None:
    Path("resources_servers/mine/app.py").write_text(code)
    blocks = f"mine: {{resources_servers: {{mine: {keys}}}}}"
    policy = f"policy_model: {{responses_api_models: {{{model}}}}}"
    Path("run.yaml").write_text(f"{blocks}\n{policy}\n")
    with pytest.raises(SystemExit) as ended:
        validate(["+config_paths=[run.yaml]", "+json=true"])
    return ended.value.code


def test_a_resources_server_without_verify_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert validated(HAS_NO_VERIFY) == 1
    said = capsys.readouterr().err
    assert "error: mine (mine): Mine in " in said and "has no method 'verify'" in said


@pytest.mark.parametrize("code", [VERIFIES, SPEAKS_FOR_ITSELF])
def test_one_that_verifies_in_its_own_way_is_valid(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validated(code, "{bonus: 2}") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["valid"] is True
    assert ("bonus" in captured.err) == (code is SPEAKS_FOR_ITSELF)


def test_one_that_runs_elsewhere_is_not_looked_into() -> None:
    assert validated(HAS_NO_VERIFY, "{placement: 'http://127.0.0.1:1'}") == 0


def test_a_package_that_is_missing_is_named_with_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    local = registry.load("responses_api_models", "local_model")
    assert {"ctranslate2", "tokenizers"} <= set(local.needs)
    monkeypatch.setattr(local, "needs", {"no_such_package_x": "rollout-kit[local]", "json": "-"})
    assert validated(VERIFIES, model="local_model: {}") == 1
    said = capsys.readouterr().err
    assert "error: policy_model (local_model): needs no_such_package_x, not installed here" in said
    assert "pip install 'rollout-kit[local]'" in said and "json" not in said


@pytest.mark.parametrize("entrypoint", ["main.py", "app.py:Mine", "app"])
def test_an_entrypoint_that_is_not_read_is_refused(
    entrypoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validated(VERIFIES, f"{{entrypoint: '{entrypoint}'}}") == 1
    assert "the server is the class in its folder's app.py" in capsys.readouterr().err
    assert validated(VERIFIES, "{entrypoint: app.py}") == 0


def test_a_key_that_no_code_mentions_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert validated(VERIFIES, "{bonus: 1, plcement: process}") == 0
    captured = capsys.readouterr()
    assert "mentions the key 'plcement' (did you mean 'placement'?)" in captured.err
    [warning] = json.loads(captured.out)["warnings"]
    assert "plcement" in warning and "bonus" not in captured.err


def test_what_is_shipped_is_valid_without_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted = ("OPENAI_API_KEY", "NVIDIA_API_KEY", "AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT")
    for name in hosted:
        monkeypatch.setenv(name, "https://x")
    root = Path(__file__).resolve().parents[2]
    values = ["+policy_base_url=http://x/v1", "+policy_model_name=m", "++policy_api_key=k"]
    for config in sorted(root.glob("configs/*.yaml")):
        with pytest.raises(SystemExit) as ended:
            paths = ",".join([str(config), *_model_for(config)])
            validate([f"+config_paths=[{paths}]", *values[: 3 * _asks(config)]])
        assert ended.value.code == 0, (config, capsys.readouterr().err)
        assert "mentions" not in capsys.readouterr().err


def _model_for(config: Path) -> list[str]:
    """A model, where the configuration leaves the choice to the user."""
    is_open = config.stem.startswith(("gsm8k", "coherence_math"))
    return ["responses_api_models/simulated_model/configs/simulated_model.yaml"] * is_open


def _asks(config: Path) -> bool:
    return "/openai_model.yaml" in config.read_text()
