"""Derive the command lines of ng_run, collector and ng_reverify from that of ng_chaos."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from ...config.commands import known_keys
from ...config.keys import ChaosConfig, CollectConfig, HeadServerConfig, ServersConfig
from ...config.load import Config
from ...config.overrides import key_of_word
from ...serving.sockets import bound_socket

OTHERS = {"config_paths", "head_server", "auth_token", "responses_create_params", "json_output"}
"""Keys from files that a collector with ng_run does not get: it starts no servers, receives the
parameters from ng_run, and has its own output format."""


@dataclass(frozen=True, slots=True)
class Words:
    """Arguments of each command. Without `through_ng_run` the collector starts the servers."""

    through_ng_run: bool
    head_server: HeadServerConfig
    ng_run: list[str]
    collector: list[str]
    ng_reverify: list[str]


def build_words(config: Config[ChaosConfig], argv: Sequence[str], folder: Path) -> Words:
    """Build the arguments; write logs and a configuration of the collector to `folder`."""
    command = config.command
    own = {*ChaosConfig.model_fields.keys() - CollectConfig.model_fields.keys(), "json"}
    given = [word for word in argv if key_of_word(word) not in own | {"head_server"}]
    servers = [word for word in given if key_of_word(word) not in known_keys() - {"config_paths"}]
    logs = [] if has_own_log_dir(command) else [f"+log_dir={folder / 'logs'}"]
    alone = Words(False, command.head_server, [], [*given, *logs], servers)
    if command.check_only or not (command.kills.servers or command.kills.ng_run):
        return alone
    head = _choose_head_server(command)
    where = [f"+head_server.host={head.host}", f"+head_server.port={head.port}"]
    upkeep = [word for word in given if key_of_word(word) in ServersConfig.model_fields]
    others = CollectConfig.model_fields.keys() - {"config_paths"}
    asked = [word for word in given if key_of_word(word) in others]
    return replace(
        alone,
        through_ng_run=True,
        head_server=head,
        ng_run=[*servers, *upkeep, *logs, *where],
        collector=[*asked, *_write_keys(command, asked, folder), *where],
    )


def has_own_log_dir(command: ChaosConfig) -> bool:
    """Whether log_dir was set by the user."""
    return command.log_dir != ChaosConfig.model_fields["log_dir"].default


def _choose_head_server(command: ChaosConfig) -> HeadServerConfig:
    """Choose a free port unless one is given, because another ng_run may be running."""
    if "head_server" in command.model_fields_set:
        return command.head_server
    with bound_socket("127.0.0.1", 0) as sock:
        return HeadServerConfig(port=sock.getsockname()[1])


def _write_keys(command: ChaosConfig, asked: Sequence[str], folder: Path) -> list[str]:
    """Write the collector's keys that come from files to a file without servers."""
    names = CollectConfig.model_fields.keys() & command.model_fields_set - OTHERS
    names -= {key_of_word(word) for word in asked}
    if not names:
        return []
    path = folder / "collect.yaml"
    values = command.model_dump(mode="json", by_alias=True, include=names)
    path.write_text(yaml.safe_dump(values, allow_unicode=True))
    return [f"+config_paths=[{path}]"]
