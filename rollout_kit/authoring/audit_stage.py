"""What an audit starts from: which verifier, with what around it, and rows with a gold answer."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson

from ..collector.plan import number_of
from ..config.instance_keys import is_url
from ..config.instances import RESOURCES, Instance
from ..config.keys.commands import AuditConfig
from ..config.load import Config
from ..config.verification import needed
from ..errors import ConfigError, suggest
from ..launch.fleet import Upkeep
from ..launch.placement import HttpLimits, placed
from ..serving import registry
from ..store.tasks import numbered_lines
from ..types import JsonObject
from .answers import cases, has_gold
from .audit import audited
from .audit_report import figures
from .audit_run import Stage
from .examination import GOLD


async def audit(config: Config, tell: Callable[[str], None]) -> JsonObject:
    """The figures of one verifier's audit; ConfigError where it cannot begin."""
    command = config.command
    assert isinstance(command, AuditConfig)
    verifier = _verifier(config, command)
    folder = registry.find(RESOURCES, verifier.implementation)
    rows = _rows(command, folder)
    tell(f"{verifier.name}: {number_of(len(rows), 'row')} with a gold answer")
    answers = cases(rows)
    async with _urls(config, verifier, tell) as urls:
        stage = Stage(
            verifier={
                "name": verifier.name,
                "implementation": verifier.implementation,
                "settings": verifier.settings,
            },
            folder=folder,
            urls=urls,
            cases=[{"row": case.row, "response": case.response} for case in answers],
            timeout_s=command.verify_timeout_s,
        )
        found = figures(await audited(stage, answers, command.slow_s, tell))
        return {**found, "verifier": verifier.name, "rows": len(rows)}


def _verifier(config: Config, command: AuditConfig) -> Instance:
    there = {each.name: each for each in config.of_type(RESOURCES)}
    wanted = command.resources_server_name
    if wanted is not None and wanted in there:
        return there[wanted]
    known = ", ".join(there) or "none"
    if wanted is not None:
        raise ConfigError(
            f"resources_server_name={wanted}: there is no such resources server"
            f"{suggest(wanted, there)}; there are: {known}"
        )
    if len(there) != 1:
        raise ConfigError(
            f"which resources server? Add +resources_server_name=…; there are: {known}"
            if there
            else "no resources server is configured: give '+config_paths=[<file>.yaml]', or"
            " +entrypoint=resources_servers/<name>"
        )
    return next(iter(there.values()))


def _rows(command: AuditConfig, folder: Path | None) -> list[JsonObject]:
    """Rows with a gold answer, `num_rows` of them drawn at random."""
    if command.input_jsonl_fpath is not None:
        given = registry.resolve_path(command.input_jsonl_fpath)
        if given is None:
            raise ConfigError(f"no input file {command.input_jsonl_fpath}")
        paths = [given]
    else:
        paths = sorted((folder / "data").glob("*.jsonl")) if folder else []
    found = [
        row
        for path in paths
        for number, raw in numbered_lines(path)
        if has_gold(row := _row(path, number, raw))
    ]
    if not found:
        where = ", ".join(map(str, paths)) or "its folder's data/"
        raise ConfigError(
            f"no row of {where} has a {' or '.join(GOLD)}: an audit starts from answers that are"
            " known to be right"
        )
    return random.Random(command.seed).sample(found, min(command.num_rows, len(found)))


def _row(path: Path, number: int, raw: bytes) -> JsonObject:
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}:{number}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{path}:{number}: not a JSON object but {type(row).__name__}")
    return row


@asynccontextmanager
async def _urls(
    config: Config, verifier: Instance, tell: Callable[[str], None]
) -> AsyncIterator[dict[str, list[str]]]:
    """Where the servers are that the verifier refers to, such as a judge; started as processes of
    their own. The verifier is among them where it runs elsewhere."""
    own = {verifier.name: [str(verifier.placement)]} if is_url(verifier.placement or "") else {}
    around = needed(config.instances, [verifier.name])
    around.pop(verifier.name)
    if not around:
        yield own
        return
    async with placed(
        replace(config, instances=around),
        default="process",
        limits=HttpLimits(),
        upkeep=Upkeep(log_dir=None, tell=tell),
    ) as running:
        yield {**own, **{each.name: each.urls for each in running.servers}}
