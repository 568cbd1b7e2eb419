"""A server as `ng_init_resources_server` writes it passes the audit."""

import asyncio
import json
from pathlib import Path

import pytest

from rollout_kit.authoring.audit_stage import audit
from rollout_kit.authoring.scaffold import EnvironmentKind, write_server
from rollout_kit.config.keys import AuditConfig
from rollout_kit.config.load import load


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["answer", "tools", "game"])
def test_a_scaffold_has_no_flag(
    kind: EnvironmentKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"new_{kind}"
    write_server(f"resources_servers/{name}", kind)
    model = {"responses_api_models": {"simulated_model": {"answer": "text", "text": "no"}}}
    Path("model.yaml").write_text(json.dumps({"policy_model": model}))
    config = f"resources_servers/{name}/configs/{name}.yaml"
    argv = [f"+config_paths=[{config},model.yaml]", f"+resources_server_name={name}"]
    found = asyncio.run(audit(load(argv, AuditConfig), lambda line: None))
    assert (found["flags"], found["accuracy_on_gold"]) == ([], 1.0)
