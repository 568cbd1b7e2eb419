"""The page about simulated users, as a reader pastes it, from an empty folder."""

import shutil
from pathlib import Path

import pytest
from claims import assert_prints
from endpoint import endpoint
from test_readme import BIN, WALKED, Walk

from rollout_kit.api.testing import text_response


def test_a_conversation_from_zero(tmp_path: Path) -> None:
    if not (BIN / "ng_help").exists() or not all(map(shutil.which, ("bash", "jq"))):
        pytest.skip("the commands, bash or jq is not installed")
    assert "docs/users.md" in WALKED
    with endpoint(lambda body: (200, text_response("B"))) as hosted:
        walk = Walk(tmp_path, hosted)
        walk.read("docs/users.md")
    assert_prints("docs/users.md", "user: Hello", walk.after("jq -r"))
    [line] = walk.rows("cafe/rollouts")
    assert line["reward"] == 1.0 and line["rollout"]["finish_reason"] == "user_stop"
    assert line["rollout"]["user"]["revealed"] == ["size", "payment"]
    assert "1 healthy" in walk.after("ng_check_rollouts")
