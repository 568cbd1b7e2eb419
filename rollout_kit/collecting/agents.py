"""How each agent makes its rollouts: its servers, model, settings, verifier and prices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..config.keys import CollectConfig, LimitsConfig, TasksConfig
from ..errors import ConfigError, TaskError
from ..launch.reach import Servers
from ..serving.agent import OneCall
from ..serving.endpoints.prices import Tariff
from ..serving.model import REQUIRE_VERSION
from ..serving.transport.peers import Peers
from ..session import FIRST_TURNS, GIVEN
from ..store.arms.arm import Arm
from ..store.manifest import fingerprint_of
from ..store.scope import parse_scope
from ..store.tasks import DEFAULT, Routes, TaskReader
from ..types import JsonObject, Key
from .changed import Made


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """How the rollouts of one agent are made. `settings` and `verifier` are fingerprints."""

    resources: str | None
    model_server: str | None
    settings: str
    verifier: str
    model: str = ""
    user_model: str = ""
    """The model that plays the user, if one does."""
    hosts: Sequence[str] = ()
    """Hosts of the model's endpoints."""
    reverify: str = "stateless"
    needs_session: bool = True
    """Whether the resources server keeps something between `/seed_session` and the verdict."""
    opaque: bool = False
    reports_turns: bool = False
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
    one_call: OneCall = ""
    timeout_s: float | None = None
    """A limit of one rollout, in addition to that of the run."""

    def settings_of(self, key: Key) -> str:
        """The fingerprint of the settings that a rollout is generated with."""
        if not self.arms:
            return self.settings
        return self.arms.get(parse_scope(key.scope).arm, self.settings)

    def read_first_turns(self, name: str, row: JsonObject) -> list[JsonObject]:
        """The turns that a row gives, as stored ones; TaskError if it gives them in vain."""
        found = row.get(FIRST_TURNS)
        if found is None:
            return []
        if not self.reports_turns:
            raise TaskError(
                f"{FIRST_TURNS}: the agent '{name}' does not report its turns, so none can be given"
                " to it"
            )
        if not isinstance(found, list) or not all(map(_is_turn, found)):
            raise TaskError(f"{FIRST_TURNS}: expected a list of turns, each a list of items")
        return [{GIVEN: items} for items in found]


def _is_turn(items: object) -> bool:
    return isinstance(items, list) and bool(items) and all(isinstance(each, dict) for each in items)


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
    if verifier.get("has_users") and about.get("plays_users") is False:
        raise ConfigError(
            f"{name}: the tasks of {resources} have a user: set user_simulator on this agent, for"
            " example {policy: scripted}; nothing was sent"
        )
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
    user_model: JsonObject = {}
    if user_server := about.get("user_model_server"):
        user_model = await peers.describe(user_server)
        settings["user_model"] = _identify(user_model)
    plan = AgentPlan(
        resources=resources,
        model_server=model_name,
        settings=fingerprint_of(settings),
        model=str(model.get("model") or ""),
        user_model=str(user_model.get("model") or ""),
        hosts=tuple(map(str, model.get("hosts") or ())),
        opaque=about.get("opaque", True),
        one_call=about.get("one_call", ""),
        **read_verifier(verifier),
        arms={arm.id: fingerprint_of({**settings, "arm": arm.settings}) for arm in arms},
    )
    if (lack := verifier.get("lack")) and not (plan.opaque or command.skip_verification):
        raise ConfigError(
            f"{resources}: {lack}; nothing was sent. Define it, or add +skip_verification=true"
        )
    plan = replace(plan, reports_turns=about.get("reports_turns") is True and not plan.opaque)
    plan = replace(plan, saves_turns=_saves_turns(name, plan, command.save_turns))
    if about.get("calls_tools") is False and plan.reverify == "replay":
        plan = replace(plan, reverify="never")  # its calls are those of its own tools
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


def _saves_turns(name: str, plan: AgentPlan, asked: bool | str) -> bool:
    """Whether the turns of an agent are stored; ConfigError if they are asked for in vain."""
    can = plan.reports_turns
    if asked is True and not can:
        raise ConfigError(
            f"save_turns: the agent '{name}' does not report its turns, as it overrides `run` or is"
            " none of this package: leave out save_turns"
        )
    return can and (plan.reverify != "never" if asked == "auto" else asked is True)


def routes_of(command: TasksConfig, servers: Servers) -> Routes:
    """Where `agent_map` and `fan_out` lead; ConfigError for an agent that does not exist."""
    moved, asked = dict(command.agent_map), command.agent_name
    is_routed = bool(moved or command.fan_out)
    if is_routed and asked is not None and moved.setdefault(DEFAULT, asked) != asked:
        raise ConfigError(
            f"agent_name: '{asked}', but agent_map.{DEFAULT} is '{moved[DEFAULT]}': give one"
        )
    routes = Routes(moved, command.fan_out)
    routes.check(servers.callable_agents)
    return routes


async def know_agents(
    command: CollectConfig, servers: Servers, reader: TaskReader
) -> dict[str, KnownAgent]:
    """The agents that a run may use, by name; ConfigError if one of them cannot be used."""
    if command.teacher:
        servers.peers.transport(command.teacher)  # an error names it if there is none
    generation: JsonObject = {}
    if servers.default_params:
        generation["default_params"] = servers.default_params
    given = command.responses_create_params
    if params := {name: given[name] for name in given if name != REQUIRE_VERSION}:
        generation["responses_create_params"] = params
    if reader.prompt:
        generation["prompt_config"] = reader.prompt.settings()
    if reader.mapping and (settings := reader.mapping.settings()):
        generation["map"] = settings
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
    _check_prices(command, known)
    return known


def made_by(known: Mapping[str, KnownAgent]) -> list[Made]:
    """How each agent makes the rollouts of each arm."""
    return [
        Made(name, arm, settings)
        for name, agent in known.items()
        for arm, settings in agent.settings.items()
    ]


def find_changed_code(known: Mapping[str, KnownAgent]) -> list[str]:
    """A warning for each verifier whose code changed after its start."""
    return [
        f"warning: {', '.join(changed)} of '{agent.plan.resources}' changed after it was started:"
        " verdicts are those of the code that it has loaded (restart it; ng_run +reload=true does)"
        for agent in known.values()
        if (changed := agent.verifier.get("changed_files"))
    ]


def _check_prices(command: LimitsConfig, known: Mapping[str, KnownAgent]) -> None:
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
