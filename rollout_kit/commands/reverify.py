"""ng_reverify: stored responses verified again, or for the first time.

It writes a new file, so that the input is safe and no line of an output ever changes.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from ..collecting.batches.batching import find_batching
from ..collecting.command_line import command_lines
from ..collecting.plan import open_reverification, survey_stored
from ..collecting.reverification import Verifiers, know_verifiers, reach_verifiers
from ..collecting.trackers.installed import check_trackers
from ..config.inputs import stored_path
from ..config.keys import ReverifyConfig
from ..config.load import Config
from ..errors import ConfigError
from ..launch.reach import Servers
from ..serving.transport import loop
from ..store.input import input_file
from ..store.nemo_gym import as_ours
from ..store.stored import StoredFile
from . import entry
from .drive import prepare, run_to_end, show_first_request
from .progress import Progress
from .throughput_log import check_log


async def reverify(config: Config[ReverifyConfig], argv: Sequence[str], progress: Progress) -> int:
    """Verify what the input holds, into the output; returns the exit status."""
    command = config.command
    check(command)
    async with (
        stored_file(command) as stored,
        reach_verifiers(config, stored.survey.agents(), progress.say) as found,
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
    check_trackers(command)


async def _reverify(
    config: Config[ReverifyConfig],
    argv: Sequence[str],
    stored: StoredFile,
    found: Verifiers,
    progress: Progress,
) -> int:
    lines, servers = command_lines("ng_reverify", argv, config), found.servers
    batching = await find_batching(servers)
    with open_reverification(config, stored, found, lines=lines, batching=batching) as collection:
        await prepare(collection, progress)
        if config.command.dry_run:
            return show_first_request(collection, progress)
        return await run_to_end(collection, found.servers.ends, progress)


@asynccontextmanager
async def stored_file(command: ReverifyConfig) -> AsyncIterator[StoredFile]:
    """The input, surveyed; ConfigError if it holds nothing to verify."""
    name = stored_path(command)
    with input_file(name) as path:
        yield await survey_stored(name, Path(as_ours(str(path))), command)


def main(words: list[str]) -> int:
    config = entry.load(words, ReverifyConfig)
    title = "Verifying rollouts"
    progress = Progress(as_json=config.command.json_output, title=title)
    status = loop.run(reverify(config, words, progress))
    entry.flush()
    return status
