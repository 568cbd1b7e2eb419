"""Everything that is settled before the first request: who runs, what is wanted, what is there.

Settings that differ from those of the output's rollouts are refused here, before anything is sent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from ..config.idle import Situation, find_idle
from ..config.inputs import choose_agent, parse_only
from ..config.instances import UNSAFE_CODE
from ..config.keys import (
    CollectConfig,
    OutputConfig,
    Parallelism,
    ReverifyConfig,
    RolloutsCommand,
)
from ..config.load import Config
from ..config.replaced import Replaced, Targets
from ..errors import ConfigError, OutputError, number_of
from ..launch.reach import Servers
from ..secrets import mask
from ..serving import registry
from ..serving.endpoints.prices import Tariff
from ..serving.nemo_gym.environment_servers import find_episode_servers, find_sources
from ..serving.transport.http import max_connections
from ..serving.transport.places import Claim
from ..store.arms.arm import Arm, with_overrides
from ..store.arms.read import read_arms
from ..store.arms.template import Prompt
from ..store.files import OutputPaths, check_apart, set_aside
from ..store.journal import AnyJournal, Journal, NoJournal
from ..store.manifest import Manifest, fingerprint_of
from ..store.stored import StoredFile, drop_stale, survey
from ..store.tasks import TaskReader
from ..types import Key, OutcomeSink, Say
from .agents import (
    AgentPlan,
    KnownAgent,
    find_changed_code,
    know_agents,
    made_by,
    routes_of,
)
from .batches.batching import Batching, describe_batching, find_batching
from .changed import find_scopes, find_uncounted
from .cheapest.ways import Ways, find_ways
from .counts import RunSource
from .data.row_mapping import RowMap, find_row_map
from .data.schemas import check_rows
from .goal import choose_source
from .history import History
from .pacing.bill import Bill
from .parts import Parts
from .reverification import StoredSource, Verifiers
from .rollout import Runner
from .sources import TaskSource, Wanted, repeats_of
from .steps import RolloutLimits


def task_reader(command: CollectConfig, servers: Servers, path: Path) -> TaskReader:
    """How the lines of the input become tasks."""
    prompt = None
    if command.prompt_config is not None:
        found = registry.resolve_path(command.prompt_config)
        prompt = Prompt.load(found or Path(command.prompt_config))
    is_given = "arms" in command.model_fields_set
    given = command.arms if is_given else servers.values.get("arms")
    arms = read_arms(given, registry.resolve_path)
    chosen = choose_agent(servers.agents, servers.values, command)
    routes = routes_of(command, servers)
    # rows may name an environment server in place of its agent
    is_open = command.agent_name is None and (servers.environments or routes)
    return TaskReader(
        path=path,
        agents=frozenset(servers.callable_agents),
        sources=find_sources(servers.values),
        without_request=find_episode_servers(servers.values),
        routes=routes,
        agent_name=None if is_open or routes else chosen,
        default_agent=chosen if is_open else None,
        default_params=servers.default_params,
        override_params=command.responses_create_params,
        prompt=prompt,
        limit=command.limit,
        repeats=(lambda agent: 1) if arms else repeats_of(command.num_repeats),
        arms=with_overrides(arms, command.responses_create_params, command.arms_seed),
        is_mine=command.shard.has if command.shard else None,
        names_malformed=command.shard is None or command.shard.number == 1,
        mapping=find_row_map(command, path),
    )


def find_wanted(
    command: CollectConfig, scopes: Mapping[tuple[str, str], str], arms: Sequence[Arm]
) -> Wanted:
    """What a command asks for."""
    repeats, only = repeats_of(command.num_repeats), parse_only(command.only)
    return Wanted(repeats, scopes, command.num_repeats_add_seed, only, arms)


@dataclass(frozen=True, slots=True)
class CommandLines:
    """What a user can type to continue this run, and to verify its output again."""

    again: str = ""
    reverify: str = ""


@dataclass(frozen=True, slots=True)
class Warmup:
    """Requests to each model before the run."""

    number: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)


AUDIT_SEED = 0
"""Draws the verdicts that are made a second time."""

AnyConfig = TypeVar("AnyConfig", bound=RolloutsCommand, covariant=True, default=RolloutsCommand)
AnySource = TypeVar("AnySource", bound=RunSource, covariant=True, default=RunSource)


@dataclass(slots=True)
class Collection(Generic[AnyConfig, AnySource]):
    """A run that may begin; a context that closes the output."""

    command: AnyConfig
    source: AnySource
    runner: Runner
    journal: AnyJournal
    manifest: Manifest
    lines: CommandLines
    parallelism: Parallelism
    tariffs: Mapping[str, Tariff | None] = field(default_factory=dict)
    """Agent → price of its model, if known."""
    notes: list[str] = field(default_factory=list)
    """What people should know before the plan."""
    warmup: Warmup = Warmup()
    replaced: Mapping[str, Replaced] = field(default_factory=dict)
    """Dotted path of a value → what `env.yaml` or the command line has replaced there."""
    targets: Mapping[str, Targets] = field(default_factory=dict)
    """Where each server of the files comes from, and what says which model it asks."""
    audit: tuple[float, int] = (0.0, 0)
    """Share of the verdicts that are made a second time, and the seed that draws them."""
    parts: Parts = field(default_factory=Parts)
    """Objects in place of those that the keys describe."""
    batching: Batching = field(default_factory=dict)
    """The model servers that gather requests into batches."""
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.notes += describe_batching(self.batching)
        self.history = History(self.paths.runs if self.paths else None)

    def begin(self) -> None:
        """Note in the manifest and the history that the counted run starts now."""
        source, plans = self.source, self.runner.agents
        if self.command.only is None:
            counts = source.counts
            if not (source.is_open_ended or counts.to_collect or counts.to_verify + counts.to_copy):
                self.manifest.keep_if_finished()
            if entry := source.input_entry():
                self.manifest.note_input(entry)
            self.manifest.write()
        elif self.runner.limits.batch_key:
            self.manifest.write()  # a later run must know its batches
        verifiers = {
            agent: {"fingerprint": plan.verifier, **plan.verifier_parts}
            for agent, plan in plans.items()
            if plan.verifier
        }
        self.history.start(self.lines.again, source.input_path, source.name, verifiers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Close the output, and note in the history how the run ended."""
        try:
            self.journal.close(clean=error is None)
        except OutputError as failed:
            error = error or failed
            raise
        finally:
            self.history.end(error)

    @property
    def paths(self) -> OutputPaths | None:
        return self.journal.paths if isinstance(self.journal, Journal) else None


def output_paths(command: OutputConfig) -> OutputPaths:
    return OutputPaths.of(Path(str(command.output_jsonl_fpath)).expanduser())


async def open_collection(
    config: Config[CollectConfig],
    servers: Servers,
    path: Path,
    name: str,
    *,
    bill: Bill,
    lines: CommandLines,
    say: Say,
    make_source: Callable[..., TaskSource] = TaskSource,
    parts: Parts = Parts(),
) -> Collection[CollectConfig, TaskSource]:
    """Open the output and plan what the tasks ask for; ConfigError or OutputError if the run must
    not begin.

    `path` is the input, and `name` how the user named it; the cost of the run is added to `bill`.
    """
    command = config.command
    reader = task_reader(command, servers, path)
    known = await know_agents(command, servers, reader)
    plans = {agent: each.plan for agent, each in known.items()}
    misfits = await check_rows(command, servers, reader, plans, name)
    make_source = choose_source(command, plans, make_source)
    batching = await find_batching(servers, plans.values(), command.executor)
    ways = await find_ways(servers, plans, command)
    journal, notes = _open_journal(command, lines, parts.sink)
    try:
        manifest = _open_manifest(journal)
        scopes = _find_scopes(command, known, journal, manifest)
        journal.contents.keep_refused(partial(_fingerprints, plans))
        _note_settings(manifest, config, known, lines)
        notes += journal.notes + _older_verdicts(journal, plans, lines) + find_changed_code(known)
        notes += _describe_mapping(reader) + _few_files(command.num_samples_in_parallel)
        notes += find_idle(_situation(config, reader, plans, ways))
        wanted = find_wanted(command, scopes, reader.arms)
        notes += find_uncounted(journal.contents, list(plans), wanted.arm_ids)
        source = make_source(command, reader, wanted, journal, name=name, agents=plans, say=say)
    except BaseException:
        journal.close(clean=False)
        raise
    limits = _limits(command, manifest, batching, **_of_responses(command))
    make = servers.make_runner or Runner
    return Collection(
        command=command,
        source=source,
        runner=make(servers.peers, plans, limits, bill=bill, **parts.of_runner(ways)),
        journal=journal,
        manifest=manifest,
        lines=lines,
        parallelism=command.num_samples_in_parallel,
        tariffs=tariffs_of(known),
        notes=misfits + notes,
        warmup=Warmup(command.warmup, command.responses_create_params),
        replaced=_mask_values(config),
        targets=config.targets,
        audit=(command.audit_fraction, AUDIT_SEED),
        parts=parts,
        batching=batching,
    )


def _find_scopes(
    command: CollectConfig,
    known: Mapping[str, KnownAgent],
    journal: AnyJournal,
    manifest: Manifest,
) -> dict[tuple[str, str], str]:
    output, appends = str(command.output_jsonl_fpath), command.resume == "append"
    return find_scopes(made_by(known), journal.contents, manifest, appends, output)


def tariffs_of(known: Mapping[str, KnownAgent]) -> dict[str, Tariff | None]:
    """Agent → price of its model, if known."""
    return {agent: each.tariff for agent, each in known.items()}


def _note_settings(
    manifest: Manifest,
    config: Config[CollectConfig],
    known: Mapping[str, KnownAgent],
    lines: CommandLines,
) -> None:
    """Note in the manifest what the rollouts and the verdicts of this run are made with."""
    plans = {agent: each.plan for agent, each in known.items()}
    verifiers = {plan.verifier: agent for agent, plan in plans.items() if plan.verifier}
    manifest.note_prices(tariffs_of(known))
    manifest.begin(lines.again, mask(config.values, config.secrets), verifiers)
    for each in made_by(known):
        manifest.know(fingerprint_of(each.settings), mask(each.settings, config.secrets))
    for each in known.values():
        manifest.know_verifier(each.verifier)


def _mask_values(config: Config[Any]) -> dict[str, Replaced]:
    return {
        place: each._replace(value=mask(each.value, config.secrets))
        for place, each in config.replaced.items()
    }


async def survey_stored(name: str, path: Path, command: ReverifyConfig) -> StoredFile:
    """The stored rollouts of a file; ConfigError if there are none, or the output is among its
    files."""
    check_apart(name, output_paths(command))
    stored = await survey(name, path, command.limit, command.only)
    if name != "-" and stored.collected.has(output_paths(command).main):
        raise ConfigError(
            f"{command.output_jsonl_fpath} belongs to the rollouts that are verified, and none of"
            " them may change: give another output_jsonl_fpath"
        )
    return stored


def open_reverification(
    config: Config[ReverifyConfig],
    stored: StoredFile,
    verifiers: Verifiers,
    *,
    lines: CommandLines,
    batching: Batching = MappingProxyType({}),
) -> Collection[ReverifyConfig, StoredSource]:
    """Open the output of a re-verification; ConfigError or OutputError if it must not begin.

    Rollouts of the output with the verdict of another verifier, or another response than the
    input's, are taken out first and verified again. The file as it was is kept beside it. An output
    of other agents is refused.
    """
    command, plans = config.command, verifiers.plans
    if not plans:
        reasons = "\n".join(verifiers.left_out.values())
        raise ConfigError(
            f"no rollout of {stored.source} can be verified; nothing was sent\n{reasons}"
        )
    paths = output_paths(command)
    notes: list[str] = []
    stale: set[Key] = set()
    if command.resume != "fresh":
        fingerprints = {agent: plan.verifier for agent, plan in plans.items()}
        stale, notes = drop_stale(paths, stored.survey, fingerprints, is_dry=command.dry_run)
    journal, opening = _open_journal(command, lines)
    try:
        manifest = Manifest.load(paths.manifest)
        stored.check_agents(paths, journal.contents.agents(), manifest.find_verified_input())
        manifest.explain_from(stored.collected.manifest)
        names = {plan.verifier: str(plan.resources) for plan in plans.values()}
        manifest.begin(lines.again, mask(config.values, config.secrets), names)
        about = {"path": stored.source, "rollouts": len(stored.survey.rows)}
        manifest.content["stored"] = about
        source = StoredSource(
            stored,
            verifiers,
            journal,
            copies_current=command.stale_only,
            names_malformed=not command.dry_run and command.only is None,
            stale=stale,
        )
    except BaseException:
        journal.close(clean=False)
        raise
    limits = _limits(command, manifest, batching, parks=False)
    runner = Runner(verifiers.servers.peers, plans, limits)
    notes += [*opening, *journal.notes]
    return Collection(
        command=command,
        source=source,
        runner=runner,
        journal=journal,
        manifest=manifest,
        lines=lines,
        parallelism=Parallelism.parse(command.num_samples_in_parallel),
        notes=notes,
        batching=batching,
    )


def _situation(
    config: Config[CollectConfig], reader: TaskReader, plans: Mapping[str, AgentPlan], ways: Ways
) -> Situation:
    instances = config.instances.values()
    places = {each.placement or ("process" if each.code else "local") for each in instances}
    is_spread = config.command.executor != "local"
    return Situation(
        config.command,
        has_arms=bool(reader.arms),
        scores_groups=any(plan.verifies_groups for plan in plans.values()),
        uses_ray=config.command.executor == "ray" or "ray" in places,
        over_http=is_spread or places != {"local"},  # without instances, those of an ng_run
        is_beside=not instances,
        runs_code=any(UNSAFE_CODE in each.settings for each in instances),
        has_gym=any(each.code is not None for each in instances),
        chooses_ways=ways.is_on,
    )


def _open_journal(
    command: CollectConfig | ReverifyConfig, lines: CommandLines, sink: OutcomeSink | None = None
) -> tuple[AnyJournal, list[str]]:
    """The journal, and what people should know about opening it."""
    if command.output_jsonl_fpath is None:
        return NoJournal(sink), []
    paths, notes = output_paths(command), []
    if command.resume == "fresh" and (moved := set_aside(paths, is_dry=command.dry_run)):
        if command.dry_run:  # show the plan as if they had been moved
            return NoJournal(), ["a real run would move the earlier files aside"]
        notes = [f"moved aside: {', '.join(map(str, moved))}"]
        paths = output_paths(command)
    return Journal(paths, fsync=command.fsync, command_line=lines.again, sink=sink), notes


def _open_manifest(journal: AnyJournal) -> Manifest:
    return Manifest.load(journal.paths.manifest) if isinstance(journal, Journal) else Manifest()


def _of_responses(command: CollectConfig) -> dict[str, Any]:
    """What becomes of a response."""
    return {
        "park_after_s": command.park_after_s,
        "skip_verification": command.skip_verification,
        "teacher": command.teacher or "",
    }


def _limits(
    command: CollectConfig | ReverifyConfig, manifest: Manifest, batching: Batching, **more: Any
) -> RolloutLimits:
    is_new = isinstance(command, CollectConfig)
    claim = (command.model_priority, command.model_share) if is_new else (0, 1.0)
    return RolloutLimits(
        batch_key=manifest.batch_key if batching else "",
        max_attempts=command.max_attempts,
        rollout_timeout_s=command.rollout_timeout_s,
        verify_timeout_s=command.verify_timeout_s,
        retry_invalid_judge_responses=command.retry_invalid_judge_responses,
        output=str(command.output_jsonl_fpath),
        claim=Claim.describe(str(command.output_jsonl_fpath), *claim),
        **more,
    )


def _fingerprints(plans: Mapping[str, AgentPlan], key: Key) -> tuple[str, str]:
    """Those of the settings and the verifier that a rollout is made with now."""
    plan = plans.get(key.agent)
    return (plan.settings_of(key), plan.verifier) if plan else ("", "")


def _describe_mapping(reader: TaskReader) -> list[str]:
    note = reader.mapping.note if isinstance(reader.mapping, RowMap) else ""
    return [note] if note else []


def _few_files(parallelism: Parallelism) -> list[str]:
    if parallelism.start <= (number := max_connections()):
        return []
    return [
        f"warning: 'ulimit -n' of this shell is too low for {parallelism.start:,} rollouts at the"
        f" same time: a server gets at most {number:,} requests at a time"
    ]


def _older_verdicts(
    journal: AnyJournal, plans: Mapping[str, AgentPlan], lines: CommandLines
) -> list[str]:
    older = sum(
        number
        for (agent, verifier), number in journal.contents.verifiers.items()
        if agent in plans and plans[agent].verifier not in ("", verifier)
    )
    notes = []
    if older:
        notes.append(
            f"{number_of(older, 'rollout')} on disk carry verdicts of an older verifier: the"
            f" metrics mix both. This renews them:\n  {lines.reverify}"
        )
    if journal.contents.foreign:
        notes.append(
            f"{journal.contents.foreign:,} lines of the output are no rollouts of this kind; they"
            " are left as they are"
        )
    return notes
