"""The servers of this project, audited as they are shipped."""

from pathlib import Path

import pytest
from audited import run_audit_of

ROOT = Path(__file__).resolve().parents[2]

LEFT_OUT = {
    "genrm_compare": "it scores groups, and an audit is about verdicts on single responses",
    "openenv_environment": "its verdicts are those of a program that it is given",
    "reward_model": "its rewards are those of a model that it is given",
}

SERVERS = [
    path.parent.name
    for path in sorted((ROOT / "resources_servers").glob("*/app.py"))
    if path.parent.name not in LEFT_OUT
]

NUM_ROWS = {"mcp_environment": 1, "shell": 2}
"""Of servers that start a process for each session."""

FALSE_ALARMS: dict[str, list[str]] = {}
"""Flags of sound servers. One is borne, in all of them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_a_shipped_server_has_no_flag(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    found = run_audit_of(name, tmp_path / "models.json", NUM_ROWS.get(name, 20))
    assert [each["flag"] for each in found["flags"]] == FALSE_ALARMS.get(name, []), found["flags"]
    assert found["accuracy_on_gold"] == 1.0


def test_one_false_alarm_at_most_is_borne() -> None:
    assert sum(map(len, FALSE_ALARMS.values())) <= 1
    assert len(SERVERS) >= 18
