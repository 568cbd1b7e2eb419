"""A server as `ng_init_resources_server` writes it passes the audit."""

from pathlib import Path

import pytest
from audited import run_audit_of

from rollout_kit.authoring.scaffold import KINDS, EnvironmentKind, write_server


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_scaffold_has_no_flag(
    kind: EnvironmentKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"new_{kind}"
    write_server(f"resources_servers/{name}", kind)
    found = run_audit_of(name, tmp_path / "models.json")
    assert (found["flags"], found["accuracy_on_gold"]) == ([], 1.0)
