"""What a run settles before its first request: how each agent makes its rollouts, and which
rollouts are wanted, done and owed.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..config.inputs import choose_agent, parse_only
from ..config.keys import CollectConfig
from ..errors import ConfigError
from ..launch.reach import Servers
from ..serving import registry
from ..serving.endpoints.prices import Tariff
from ..serving.model import REQUIRE_VERSION
from ..serving.nemo_gym.environment_servers import find_sources
from ..serving.transport.peers import Peers
from ..store.arms.arm import Arm, with_overrides
from ..store.arms.changed import Made
from ..store.arms.read import read_arms
from ..store.arms.template import Prompt
from ..store.arms.wanted import Wanted, repeats_of
from ..store.compact import Keys
from ..store.groups.scope import parse_scope
from ..store.manifest import fingerprint_of
from ..store.tasks import BREATH, Malformed, TaskReader, agent_name_of
from ..types import Attempt, JsonObject, Key, Task
from .schedule import LATER, Later


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """How the rollouts of one agent are made. `settings` and `verifier` are fingerprints."""

    resources: str | None
    model_server: str | None
    settings: str
    verifier: str
    model: str = ""
    hosts: Sequence[str] = ()
    """Hosts of the model's endpoints."""
    reverify: str = "stateless"
    needs_session: bool = True
    """Whether the resources server keeps something between `/seed_session` and the verdict."""
    opaque: bool = False
    saves_turns: bool = False
    verifies: bool = True
    """Whether rollouts have verdicts of their own; a server may score groups only."""
    verifies_groups: bool = False
    verifier_parts: JsonObject = field(default_factory=dict)
    """What the fingerprint of the verifier covers, such as versions of libraries, if it says so."""
    arms: Mapping[str, str] = field(default_factory=dict)
    """Arm → the fingerprint of its settings."""
    server: str = ""
    """The agent's server; empty if it has the name that the keys have."""
    agent: str = ""
    """The agent behind the keys' name, if that is the name of an environment server."""
    timeout_s: float | None = None
    """A limit of one rollout, in addition to that of the run."""

    def settings_of(self, key: Key) -> str:
        """The fingerprint of the settings that a rollout is generated with."""
        if not self.arms:
            return self.settings
        return self.arms.get(parse_scope(key.scope).arm, self.settings)


@dataclass(frozen=True, slots=True)
class KnownAgent:
    """An agent's plan, and the settings behind its fingerprints."""

    plan: AgentPlan
    settings: Mapping[str, JsonObject]
    """Arm → its settings; under an empty name those of a run without arms."""
    tariff: Tariff | None
    """Of its model, if that server reports one."""
    verifier: JsonObject
    """What its resources server says about itself."""


async def know_agent(
    peers: Peers,
    name: str,
    generation: JsonObject,
    command: CollectConfig,
    arms: Sequence[Arm] = (),
) -> KnownAgent:
    """Ask the agent of a server and what it uses to describe themselves; `generation` holds the
    settings that the command adds, before those of each arm."""
    about = await peers.describe(name)
    model_name, resources = about.get("model_server"), about.get("resources_server")
    model = await peers.describe(model_name) if model_name else {}
    verifier = await peers.describe(resources) if resources else {}
    own = {
        key: value
        for key, value in about.get("settings", {}).items()
        if key not in ("model_server", "resources_server")
    }
    settings = {
        "agent": own,
        "model": _identify(model),
        **generation,
    }
    plan = AgentPlan(
        resources=resources,
        model_server=model_name,
        settings=fingerprint_of(settings),
        model=str(model.get("model") or ""),
        hosts=tuple(map(str, model.get("hosts") or ())),
        opaque=about.get("opaque", True),
        **read_verifier(verifier),
        arms={arm.id: fingerprint_of({**settings, "arm": arm.settings}) for arm in arms},
    )
    if (lack := verifier.get("lack")) and not (plan.opaque or command.skip_verification):
        raise ConfigError(
            f"{resources}: {lack}; nothing was sent. Define it, or add +skip_verification=true"
        )
    plan = replace(plan, saves_turns=_saves_turns(name, plan, about, command.save_turns))
    by_arm = {arm.id: {**settings, "arm": arm.settings} for arm in arms} or {"": settings}
    return KnownAgent(plan, by_arm, Tariff.from_json(model.get("prices")), verifier)


def read_verifier(about: JsonObject) -> JsonObject:
    """The part of a plan that a resources server describes."""
    return {
        "verifier": about.get("verifier", ""),
        "verifier_parts": about.get("verifier_parts", {}),
        "reverify": about.get("reverify", "never"),  # a foreign server does not say
        "needs_session": about.get("needs_session", True),
        "verifies": about.get("verifies", True),
        "verifies_groups": about.get("verifies_groups", False),
    }


def _identify(model: JsonObject) -> JsonObject:
    """Settings of a model, with its name unless its weights are known, or follow a trainer."""
    settings = model.get("settings", {})
    is_known = "weights" in settings or "weight_sync" in settings
    return settings if is_known else {"name": model.get("model"), **settings}


def _saves_turns(name: str, plan: AgentPlan, about: JsonObject, asked: bool | str) -> bool:
    """Whether the turns of an agent are stored; ConfigError if they are asked for in vain."""
    can = about.get("reports_turns") is True and not plan.opaque
    if asked is True and not can:
        raise ConfigError(
            f"save_turns: the agent '{name}' does not report its turns, as it overrides `run` or is"
            " none of this package: leave out save_turns"
        )
    return can and (plan.reverify != "never" if asked == "auto" else asked is True)


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
    # rows may name an environment server in place of its agent
    is_open = command.agent_name is None and servers.environments
    return TaskReader(
        path=path,
        agents=frozenset(servers.callable_agents),
        sources=find_sources(servers.values),
        agent_name=None if is_open else chosen,
        default_agent=chosen if is_open else None,
        default_params=servers.default_params,
        override_params=command.responses_create_params,
        prompt=prompt,
        limit=command.limit,
        repeats=(lambda agent: 1) if arms else repeats_of(command.num_repeats),
        arms=with_overrides(arms, command.responses_create_params, command.arms_seed),
        is_mine=command.shard.has if command.shard else None,
        names_malformed=command.shard is None or command.shard.number == 1,
    )


def check_repeats(command: CollectConfig) -> None:
    """ConfigError if a task is to have no rollout."""
    asked = command.num_repeats
    for number in asked.values() if isinstance(asked, dict) else [asked]:
        if number < 1:
            raise ConfigError(f"num_repeats: must be at least 1, got {number}")


async def know_agents(
    command: CollectConfig, servers: Servers, reader: TaskReader
) -> dict[str, KnownAgent]:
    generation: JsonObject = {}
    if servers.default_params:
        generation["default_params"] = servers.default_params
    given = command.responses_create_params
    if params := {name: given[name] for name in given if name != REQUIRE_VERSION}:
        generation["responses_create_params"] = params
    if reader.prompt:
        generation["prompt_config"] = reader.prompt.settings()
    if command.num_repeats_add_seed:
        generation["num_repeats_add_seed"] = True
    names = [reader.agent_name] if reader.agent_name else servers.callable_agents
    environments, known = servers.environments, {}
    for name in names:
        environment = environments.get(name)
        server = environment.agent if environment and name not in servers.agents else name
        found = await know_agent(servers.peers, server, generation, command, reader.arms)
        if environment:
            behind = "" if server == name else server
            plan = replace(
                found.plan, server=behind, agent=environment.agent, timeout_s=environment.timeout_s
            )
            found = replace(found, plan=plan)
        known[name] = found
    return known


def made_by(known: Mapping[str, KnownAgent]) -> list[Made]:
    """How each agent makes the rollouts of each arm."""
    return [
        Made(name, arm, settings)
        for name, agent in known.items()
        for arm, settings in agent.settings.items()
    ]


def find_wanted(
    command: CollectConfig, scopes: Mapping[tuple[str, str], str], arms: Sequence[Arm]
) -> Wanted:
    """What a command asks for."""
    repeats, only = repeats_of(command.num_repeats), parse_only(command.only)
    return Wanted(repeats, scopes, command.num_repeats_add_seed, only, arms)


def find_changed_code(known: Mapping[str, KnownAgent]) -> list[str]:
    """A warning for each verifier whose code changed after its start."""
    return [
        f"warning: {', '.join(changed)} of '{agent.plan.resources}' changed after it was started:"
        " verdicts are those of the code that it has loaded (restart it; ng_run +reload=true does)"
        for agent in known.values()
        if (changed := agent.verifier.get("changed_files"))
    ]


def check_prices(command: CollectConfig, known: Mapping[str, KnownAgent]) -> None:
    """ConfigError if money is limited and the price of a model is unknown."""
    for name, agent in known.items():
        if command.max_cost_usd is not None and agent.tariff is None:
            server, model = agent.plan.model_server, agent.plan.model
            what = f"the price of '{model}' ({server})" if server else f"what '{name}' asks"
            raise ConfigError(
                f"max_cost_usd: {what} is not known. Give the model server its prices, in US"
                " dollars per million tokens:  prices: {input: …, output: …}; or limit"
                " max_total_tokens instead"
            )


@dataclass(frozen=True, slots=True)
class Counts:
    """The plan of a run in numbers.

    `planned` = done + to_verify + to_copy + to_collect + refused + left_out.
    """

    tasks: int = 0
    """Distinct tasks of each agent."""
    repeated: int = 0
    """Rows that are identical to an earlier one: further repeats of its task."""
    planned: int = 0
    done: int = 0
    to_verify: int = 0
    to_copy: int = 0
    refused: int = 0
    """Permanent failures of earlier runs."""
    left_out: int = 0
    """Stored rollouts that no running server can verify."""
    malformed: int = 0
    without_response: int = 0
    """Stored failures that hold no response to verify."""
    older: int = 0
    """Stored verdicts of another verifier than the present one."""
    current: int = 0
    """Stored verdicts of the present verifier."""
    none: int = 0
    """Stored responses without a verdict."""
    renamed: int = 0
    """Tasks whose row names another agent than the one it runs with."""
    first_renamed: Task | None = None

    @property
    def to_collect(self) -> int:
        others = self.done + self.to_verify + self.to_copy + self.refused + self.left_out
        return self.planned - others

    def __add__(self, other: "Counts") -> "Counts":
        names = [name for name in Counts.__slots__ if name != "first_renamed"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Counts(**sums, first_renamed=self.first_renamed or other.first_renamed)

    def figures(self, *names: str) -> dict[str, int]:
        """Some of the numbers, for a program to read."""
        return {name: getattr(self, name) for name in names}


def find_owed(
    tasks: Iterable[Task | Malformed],
    wanted: Wanted,
    settled: Callable[[Key], bool],
    on_task: Callable[[Task, Sequence[Key]], None] | None = None,
) -> Iterator[Attempt | Later]:
    """Every key that is still to be collected, in input order, the repeats of a task together.

    `settled` tells whether a key is done, waits for its verdict or failed permanently; `on_task`
    receives each task with its keys. A Later now and then lets other work of the event loop go on.
    """
    for number, task in enumerate(tasks, 1):
        if number % BREATH == 0:
            yield LATER
        if isinstance(task, Malformed):
            continue
        if on_task is None:
            yield from wanted.attempts(task, settled)
        else:
            pairs = list(wanted.pairs(task))
            on_task(task, [key for _, key in pairs])
            yield from wanted.attempts(task, settled, pairs)


def count(
    tasks: Iterable[Task | Malformed],
    wanted: Wanted,
    *,
    done: Keys,
    pending: Collection[Key],
    refused: Collection[Key],
) -> tuple[Counts, set[Key]]:
    """A part of the input in numbers, and the keys whose response only needs a verdict."""
    num_rows = repeated = planned = num_done = num_refused = malformed = renamed = 0
    first_renamed: Task | None = None
    to_verify: set[Key] = set()
    is_all_owed = wanted.only is None and not (done or pending or refused)
    for task in tasks:
        if isinstance(task, Malformed):
            malformed += wanted.only is None
            continue
        keys = () if is_all_owed else wanted.keys(task)
        number = wanted.num_keys(task) if is_all_owed else len(keys)
        planned += number
        for key in keys:
            if key in done:
                num_done += 1
            elif key in refused:
                num_refused += 1
            elif key in pending:
                to_verify.add(key)
        if number:
            num_rows += 1
            repeated += task.first_rollout > 0 and wanted.only is None
            if agent_name_of(task.row) not in (None, task.agent):
                renamed += 1
                first_renamed = first_renamed or task
    counts = Counts(
        tasks=num_rows - repeated,
        repeated=repeated,
        planned=planned,
        done=num_done,
        to_verify=len(to_verify),
        refused=num_refused,
        malformed=malformed,
        renamed=renamed,
        first_renamed=first_renamed,
    )
    return counts, to_verify
