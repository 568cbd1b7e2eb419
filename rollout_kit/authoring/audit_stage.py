"""Set up an audit: select the verifier and rows with gold answers, start the servers it needs."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson

from ..config.instance_keys import is_url
from ..config.instances import MODELS, RESOURCES, Instance
from ..config.keys import AuditConfig
from ..config.load import Config
from ..config.verification import select_needed
from ..errors import ConfigError, number_of, suggest
from ..launch.fleet import Upkeep
from ..launch.placement import HttpLimits, placed
from ..serving import registry
from ..serving.resources_server import ResourcesServer
from ..store.input import number_lines
from ..types import JsonObject
from .answers import build_cases, has_gold
from .audit import run_audit
from .audit_report import summarize_audit
from .audit_run import Stage
from .examination import GOLD
from .gaming.search import search_holes
from .self_writes import find_self_writes


async def audit(config: Config[AuditConfig], tell: Callable[[str], None]) -> JsonObject:
    """Audit the configured verifier; raise ConfigError if the audit cannot start."""
    command = config.command
    verifier = _select_verifier(config)
    folder = registry.find(RESOURCES, verifier.implementation)
    server = folder and registry.load(RESOURCES, verifier.implementation)
    if getattr(server, "verify", None) is ResourcesServer.verify:
        raise ConfigError(
            f"{verifier.name}: it has no method 'verify', and the audit is about verdicts on single"
            " responses: its own tests must check the scores of groups"
        )
    rows = _sample_rows(command, folder)
    tell(f"{verifier.name}: {number_of(len(rows), 'row')} with a gold answer")
    answers = build_cases(rows)
    async with _start_servers(config, verifier, tell) as urls:
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
        audited = await run_audit(stage, answers, command.slow_s, tell)
        holes = await search_holes(audited, stage, rows, _list_judges(config, verifier), tell)
        for name, evidence in holes.flags:
            audited.flag(name, evidence)
        audited.remarks += [f"{name}: {evidence}" for name, evidence in holes.remarks]
        found = {**summarize_audit(audited), "tricks": holes.tricks}
        remarks = [*found["remarks"], *map(str, find_self_writes(server) if server else ())]
        return {**found, "remarks": remarks, "verifier": verifier.name, "rows": len(rows)}


def _list_judges(config: Config[AuditConfig], verifier: Instance) -> list[str]:
    """The models that the verifier asks, if it runs here."""
    if is_url(verifier.placement or ""):
        return []
    needed = select_needed(config.instances, [verifier.name]).values()
    return [each.name for each in needed if each.type == MODELS]


def _select_verifier(config: Config[AuditConfig]) -> Instance:
    there = {each.name: each for each in config.of_type(RESOURCES)}
    wanted = config.command.resources_server_name
    if wanted is not None and wanted in there:
        return there[wanted]
    known = ", ".join(there) or "none"
    if wanted is not None:
        raise ConfigError(
            f"resources_server_name={wanted}: no such resources server{suggest(wanted, there)};"
            f" configured: {known}"
        )
    if len(there) != 1:
        raise ConfigError(
            f"which resources server? Add +resources_server_name=…; configured: {known}"
            if there
            else "no resources server is configured: give '+config_paths=[<file>.yaml]', or"
            " +entrypoint=resources_servers/<name>"
        )
    return next(iter(there.values()))


def _sample_rows(command: AuditConfig, folder: Path | None) -> list[JsonObject]:
    """Return a random sample of `num_rows` rows with a gold answer."""
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
        for number, raw in number_lines(path)
        if has_gold(row := _parse_row(path, number, raw))
    ]
    if not found:
        where = ", ".join(map(str, paths)) or "its folder's data/"
        raise ConfigError(
            f"no row of {where} has a {' or '.join(GOLD)}: an audit needs answers that are known to"
            " be correct"
        )
    return random.Random(command.seed).sample(found, min(command.num_rows, len(found)))


def _parse_row(path: Path, number: int, raw: bytes) -> JsonObject:
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}:{number}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{path}:{number}: not a JSON object but {type(row).__name__}")
    return row


@asynccontextmanager
async def _start_servers(
    config: Config, verifier: Instance, tell: Callable[[str], None]
) -> AsyncIterator[dict[str, list[str]]]:
    """Start the servers that the verifier refers to, such as a judge, as processes; yield the URLs
    by name. They include the verifier if it runs elsewhere."""
    own = {verifier.name: [str(verifier.placement)]} if is_url(verifier.placement or "") else {}
    around = select_needed(config.instances, [verifier.name])
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
