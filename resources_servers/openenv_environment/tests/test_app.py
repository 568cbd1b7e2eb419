"""Its configuration. `tests/servers/test_openenv.py` plays it."""

import pytest
from pydantic import ValidationError

from rollout_kit import ConfigError
from rollout_kit.serving import registry
from rollout_kit.serving.protocols.openenv_program import read_app

Server = registry.load("resources_servers", "openenv_environment")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "set either url or folder"),
        ({"url": "http://x", "folder": "y"}, "set either url or folder"),
        ({"url": "http://x", "interpreter": "python3"}, "interpreter: is for a folder"),
        ({"url": "x"}, "url"),
    ],
)
def test_a_place_that_means_nothing_is_refused(settings, why):
    with pytest.raises(ValidationError, match=why):
        Server.Config(**settings)


@pytest.mark.parametrize(
    ("settings", "reverify", "own_process"),
    [
        ({"url": "http://x"}, "never", False),
        ({"folder": "x", "deterministic": True}, "replay", True),
    ],
)
def test_only_a_deterministic_environment_is_played_again(settings, reverify, own_process):
    assert Server(Server.Config(**settings)).describe()["reverify"] == reverify
    assert Server.demands(settings).own_process is own_process


@pytest.mark.parametrize("text", [None, "app: [", "name: x", "app: server"])
def test_a_folder_without_an_app_is_named(tmp_path, text):
    if text is not None:
        (tmp_path / "openenv.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"openenv\.yaml"):
        read_app(tmp_path)
