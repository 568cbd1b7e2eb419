"""Everything that is settled before the first request: who runs, what is wanted, what is there.

Settings that differ from those that the output was generated with stop here, before anything is
sent.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..config.keys.commands import CollectConfig, RolloutsCommand, known_keys
from ..config.load import Config
from ..endpoints.prices import Tariff
from ..errors import ConfigError, OutputError
from ..metrics.aggregate import Metrics
from ..pacing.bill import Bill
from ..secrets import mask
from ..serving import registry
from ..store.contents import Contents
from ..store.files import OutputPaths, set_aside
from ..store.journal import Journal
from ..store.manifest import Manifest, differences
from ..store.tasks import Prompt, TaskReader
from ..types import JsonObject
from .plan import Wanted, number_of
from .reach import KnownAgent, Reached, chosen_agent, known_agent
from .rollout import Limits, Runner


@dataclass(slots=True)
class Prepared:
    """A run that may begin."""

    command: CollectConfig
    source: str
    """The input as the user named it; the reader's path may be a copy of standard input."""
    reader: TaskReader
    wanted: Wanted
    tariffs: dict[str, Tariff | None]
    """Agent → what its model costs, as far as that is known."""
    runner: Runner
    journal: Journal
    manifest: Manifest
    metrics: Metrics
    command_line: str
    renewing: str
    """The command that verifies again what the output holds."""
    notes: list[str] = field(default_factory=list)


async def prepared(
    config: Config, argv: Sequence[str], servers: Reached, source: str, path: Path, bill: Bill
) -> Prepared:
    """ConfigError or OutputError when the run must not begin. `bill`: where its costs are added."""
    command = config.command
    assert isinstance(command, CollectConfig)
    reader = task_reader(command, servers, path)
    known = await _known_agents(command, servers, reader)
    check_prices(command, known)
    paths = output_paths(command)
    starts_over = command.resume == "fresh"
    moved = set_aside(paths) if starts_over and not command.dry_run else []
    notes = [f"moved aside: {', '.join(map(str, moved))}"] if moved else []
    journal = Journal(paths, fsync=command.fsync)
    if starts_over and command.dry_run:  # as if the files had been moved: nothing is touched
        journal.contents = Contents()
        notes = ["a real run would move the earlier files aside"]
    try:
        manifest = Manifest.load(paths.manifest)
        scopes = _scopes(command, known, journal, manifest)
        wanted = Wanted(reader.repeats, scopes, command.num_repeats_add_seed, only_of(command.only))
        plans = {name: agent.plan for name, agent in known.items()}
        journal.contents.keep_refused(
            {name: plan.settings for name, plan in plans.items()},
            {name: plan.verifier for name, plan in plans.items()},
        )
        runner = Runner(servers.peers, plans, _limits(command), bill=bill)
        again = command_line("ng_collect_rollouts", argv, config.secrets)
        manifest.begin(
            again,
            mask(config.values, config.secrets),
            {agent.plan.verifier: name for name, agent in known.items() if agent.plan.verifier},
        )
        tariffs = {name: agent.tariff for name, agent in known.items()}
        manifest.note_prices(tariffs)
        for agent in known.values():
            manifest.know(agent.plan.settings, mask(agent.settings, config.secrets))
        renewing = reverify_command(argv, config.secrets, paths)
        notes += [*journal.notes, *_older_verdicts(journal, known, renewing)]
    except BaseException:
        journal.close(clean=False)
        raise
    metrics = Metrics(command.pass_threshold)
    return Prepared(
        command=command,
        source=source,
        reader=reader,
        wanted=wanted,
        tariffs=tariffs,
        runner=runner,
        journal=journal,
        manifest=manifest,
        metrics=metrics,
        command_line=again,
        renewing=renewing,
        notes=notes,
    )


def _limits(command: CollectConfig) -> Limits:
    return Limits(
        max_attempts=command.max_attempts,
        rollout_timeout_s=command.rollout_timeout_s,
        verify_timeout_s=command.verify_timeout_s,
        park_after_s=command.park_after_s,
        skip_verification=command.skip_verification,
    )


def output_paths(command: RolloutsCommand) -> OutputPaths:
    path = Path(str(command.output_jsonl_fpath)).expanduser()
    if path.suffix in (".gz", ".zst"):
        raise ConfigError(f"{path}: rollouts are appended as plain lines: leave out {path.suffix}")
    return OutputPaths(path)


def task_reader(command: CollectConfig, servers: Reached, path: Path) -> TaskReader:
    """How the input's lines become tasks under this command."""
    prompt = None
    if command.prompt_config is not None:
        prompt = Prompt.load(
            registry.resolve_path(command.prompt_config) or Path(command.prompt_config)
        )
    return TaskReader(
        path=path,
        agents=frozenset(servers.agents),
        agent_name=chosen_agent(servers, command),
        default_params=servers.default_params,
        override_params=command.responses_create_params,
        prompt=prompt,
        limit=command.limit,
        repeats=_repeats(command.num_repeats),
    )


def _repeats(asked: int | dict[str, int]) -> Callable[[str], int]:
    if isinstance(asked, int):
        return lambda agent: asked

    def of(agent: str) -> int:
        found = asked.get(agent, asked.get("_default"))
        if found is None:
            raise ConfigError(f"num_repeats: has neither '{agent}' nor '_default'")
        return found

    return of


def only_of(asked: str | None) -> tuple[str, int] | None:
    if asked is None:
        return None
    task_id, _, index = asked.rpartition(":")
    if not task_id or not (index.isascii() and index.isdecimal()):
        raise ConfigError(f"only={asked}: expected <task_id>:<rollout_index>")
    return task_id, int(index)


async def _known_agents(
    command: CollectConfig, servers: Reached, reader: TaskReader
) -> dict[str, KnownAgent]:
    generation: JsonObject = {}
    if servers.default_params:
        generation["default_params"] = servers.default_params
    if command.responses_create_params:
        generation["responses_create_params"] = command.responses_create_params
    if reader.prompt:
        generation["prompt_config"] = {
            "user": reader.prompt.user,
            "system": reader.prompt.system,
        }
    if command.num_repeats_add_seed:
        generation["num_repeats_add_seed"] = True
    names = [reader.agent_name] if reader.agent_name else servers.agents
    return {name: await known_agent(servers.peers, name, generation) for name in names}


def check_prices(command: CollectConfig, known: dict[str, KnownAgent]) -> None:
    """ConfigError where money is limited and nobody knows what is spent."""
    for name, agent in known.items():
        if command.max_cost_usd is not None and agent.tariff is None:
            server, model = agent.plan.model_server, agent.plan.model
            what = f"the price of '{model}' ({server})" if server else f"what '{name}' asks"
            raise ConfigError(
                f"max_cost_usd: {what} is not known. Give the model server its prices, in US"
                " dollars per million tokens:  prices: {input: …, output: …}; or limit"
                " max_total_tokens instead"
            )


def _scopes(
    command: CollectConfig, known: dict[str, KnownAgent], journal: Journal, manifest: Manifest
) -> dict[str, str]:
    """Agent → scope, for agents whose rollouts on disk were generated with other settings."""
    scopes = {}
    for name, agent in known.items():
        held = journal.contents.settings.get((name, ""), set()) - {agent.plan.settings}
        if not held:
            continue
        if command.resume != "append":
            raise OutputError(_other_settings(name, agent, held, journal, manifest))
        scopes[name] = agent.plan.settings
    return scopes


def _other_settings(
    name: str, agent: KnownAgent, held: set[str], journal: Journal, manifest: Manifest
) -> str:
    changes = [
        change
        for fingerprint in sorted(held)
        for change in differences(manifest.settings(fingerprint) or {}, agent.settings)
    ]
    return (
        f"{journal.paths.main} holds rollouts of '{name}' that were generated with other"
        " settings:\n"
        + "".join(f"  {change}\n" for change in changes or ["(which ones is not known)"])
        + "Nothing was sent. Ways on:\n"
        "  another output:        +output_jsonl_fpath=…\n"
        "  into the same file:    +resume=append  (kept apart under a scope of their own)\n"
        "  start over:            +resume=fresh   (the old files are moved aside)"
    )


def _older_verdicts(journal: Journal, known: dict[str, KnownAgent], renewing: str) -> list[str]:
    current = {name: agent.plan.verifier for name, agent in known.items()}
    older = sum(
        number
        for (agent, verifier), number in journal.contents.verifiers.items()
        if current.get(agent) not in (None, "", verifier)
    )
    notes = []
    if older:
        notes.append(
            f"{number_of(older, 'rollout')} on disk carry verdicts of an older verifier: the"
            f" metrics mix both. This renews them:\n  {renewing}"
        )
    if journal.contents.foreign:
        notes.append(
            f"{journal.contents.foreign:,} lines of {journal.paths.main} are no rollouts of this"
            " kind; they are left as they are"
        )
    return notes


def command_line(command: str, argv: Sequence[str], secrets: frozenset[str]) -> str:
    """The command as one can type it again, without its secrets."""
    kept = [word for word in argv if word.lstrip("+").partition("=")[0] not in ONCE]
    kept = [word for word in kept if word.lstrip("+") != "resume=fresh"]  # what is there is fresh
    return shlex.join([command, *(str(mask(word, secrets)) for word in kept)])


def reverify_command(argv: Sequence[str], secrets: frozenset[str], paths: OutputPaths) -> str:
    """The `ng_reverify` that verifies this output with the servers of this command."""
    servers = [word for word in argv if key_of_word(word) not in known_keys() - OF_SERVERS]
    files = [
        f"+input_jsonl_fpath={paths.main}",
        f"+output_jsonl_fpath={paths.beside('_reverified.jsonl')}",
    ]
    return command_line("ng_reverify", [*servers, *files], secrets)


def key_of_word(word: str) -> str:
    """The top-level key that a word of the command line sets."""
    return word.lstrip("+~").partition("=")[0].partition(".")[0]


OF_SERVERS = frozenset({"config_paths", "head_server"})
"""Keys of a command that say which servers it works with; what is no command's key does too."""

ONCE = frozenset({"only", "dry_run", "confirm", "num_canary", "canary_seed"})
"""Keys that belong to one call and not to the run: left out of the command that continues it."""
