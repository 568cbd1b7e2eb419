"""ng_reverify: stored responses verified again, or for the first time."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from ..collector.collection import open_reverification, output_paths
from ..collector.plan import BREATH, number_of
from ..collector.reverification import Verifiers, know_verifiers, reach_verifiers
from ..config.inputs import parse_only, stored_path
from ..config.keys.commands import ReverifyConfig
from ..config.load import Config
from ..errors import ConfigError
from ..launch.reach import Servers
from ..store.files import check_apart
from ..store.stored import StoredFile, Survey, stored_lines
from ..store.tasks import input_file
from .command_line import command_lines
from .progress import Progress
from .run import prepare, run_to_end, show_first_request
from .throughput_log import check_log


async def reverify(config: Config[ReverifyConfig], argv: Sequence[str], progress: Progress) -> int:
    """Verify what the input holds, into the output; returns the exit status."""
    command = config.command
    check(command)
    async with (
        stored_file(command) as stored,
        reach_verifiers(config, command, stored.survey.agents(), progress.say) as found,
    ):
        return await _reverify(config, argv, stored, found, progress)


async def reverify_through(
    servers: Servers,
    names: Mapping[str, str | None],
    config: Config[ReverifyConfig],
    argv: Sequence[str],
    progress: Progress,
) -> int:
    """The same through servers that run already; `names`: agent → its resources server."""
    check(config.command)
    async with stored_file(config.command) as stored:
        found = await know_verifiers(servers, names, stored.survey.agents())
        return await _reverify(config, argv, stored, found, progress)


def check(command: ReverifyConfig) -> None:
    """ConfigError for what the types of the keys cannot express."""
    if command.output_jsonl_fpath is None:
        raise ConfigError("output_jsonl_fpath is missing: add +output_jsonl_fpath=reverified.jsonl")
    check_log(command)


async def _reverify(
    config: Config[ReverifyConfig],
    argv: Sequence[str],
    stored: StoredFile,
    found: Verifiers,
    progress: Progress,
) -> int:
    lines = command_lines("ng_reverify", argv, config, config.command)
    collection = open_reverification(config, stored, found, lines=lines)
    is_clean = False
    try:
        await prepare(collection, progress)
        if config.command.dry_run:
            status = show_first_request(collection, progress)
        else:
            status = await run_to_end(collection, found.servers.ends, progress)
        is_clean = True
    finally:
        collection.journal.close(clean=is_clean)
    return status


@asynccontextmanager
async def stored_file(command: ReverifyConfig) -> AsyncIterator[StoredFile]:
    """The input, surveyed; ConfigError if it holds nothing to verify."""
    name = stored_path(command)
    survey = Survey(command.limit, parse_only(command.only))
    with input_file(name) as path:
        stored = StoredFile(name, path, survey)
        check_apart(name, output_paths(command))
        if name != "-" and stored.collected.has(output_paths(command).main):
            raise ConfigError(
                f"{command.output_jsonl_fpath} belongs to the rollouts that are verified, and none"
                " of them may change: give another output_jsonl_fpath"
            )
        for read, line in enumerate(stored_lines(path), 1):
            if not survey.take(line):
                break
            if read % BREATH == 0:
                await asyncio.sleep(0)  # let signals and other work in
        if not survey.rows:
            raise ConfigError(_why_nothing(name, survey, command))
        yield stored


def _why_nothing(name: str, survey: Survey, command: ReverifyConfig) -> str:
    if command.only is not None:
        return f"only={command.only}: {name} has no such rollout"
    if survey.malformed:
        first = survey.malformed[0]
        return (
            f"{name}: there is no stored rollout in it; line {first.line}: {first.message}."
            " Give a file that ng_collect_rollouts wrote"
        )
    if survey.without_response:
        what = number_of(survey.without_response, "failure")
        return f"{name}: {what}, and none carries a response: there is nothing to verify"
    return f"{name}: there is no rollout in it"
