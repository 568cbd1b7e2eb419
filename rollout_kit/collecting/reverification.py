"""Stored responses as a source of attempts, and who verifies them.

Neither an agent nor the policy model is started: the configuration of an agent names its resources
server. So a machine that only verifies needs no API key and no weights.
"""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from ..analysis.metrics.changed_verdicts import Comparison
from ..config.instances import AGENTS
from ..config.keys import ReverifyConfig
from ..config.load import Config
from ..config.verification import select_needed, verifier_of
from ..errors import ConfigError, RolloutError, suggest
from ..launch.reach import Servers, reach
from ..serving.nemo_gym.environment_servers import find_environment_servers
from ..store.journal import AnyJournal
from ..store.lines import Malformed, row_of
from ..store.scope import Group, arm_of_key, group_of, without_arm
from ..store.stored import Line, Stored, StoredFile, read_stored_lines
from ..store.tasks import BREATH, OwnTasks
from ..types import Attempt, JsonObject, Key, Outcome, Rollout, Say, Task
from .agents import AgentPlan, read_verifier
from .counts import Counts, RunSource
from .schedule import LATER, Attempts, End, Later

AGAIN = "collect these rollouts again with ng_collect_rollouts"


@dataclass(frozen=True, slots=True)
class Verifiers:
    """`plans`: agent → how its rollouts are verified; `left_out`: agent → why they are not."""

    servers: Servers
    plans: dict[str, AgentPlan]
    left_out: dict[str, str] = field(default_factory=dict)


@asynccontextmanager
async def reach_verifiers(
    config: Config[ReverifyConfig], agents: Collection[str], say: Say
) -> AsyncIterator[Verifiers]:
    """The resources servers of these agents: started here with `config_paths`, with the judges
    that they refer to, or those of a running `ng_run`."""
    if config.instances:
        names = {each.name: verifier_of(each) for each in config.of_type(AGENTS)}
        for one in find_environment_servers(config.values).values():
            names.setdefault(one.name, one.resources or names.get(one.agent))
        servers = select_needed(config.instances, {names.get(agent) or "" for agent in agents})
        if not servers:
            raise ConfigError("\n".join(_unknown(agent, names) for agent in agents))
        async with reach(replace(config, instances=servers), say) as here:
            yield await know_verifiers(here, names, agents)
        return
    async with reach(config, say) as there:
        yield await verifiers_of(there, agents)


async def verifiers_of(servers: Servers, agents: Collection[str]) -> Verifiers:
    """Who verifies the rollouts of these agents, among servers that run."""
    known: dict[str, str | None] = dict.fromkeys(servers.callable_agents)
    names = known | {name: await _verifier_name(servers, name) for name in known if name in agents}
    return await know_verifiers(servers, names, agents)


async def know_verifiers(
    servers: Servers, names: Mapping[str, str | None], agents: Collection[str]
) -> Verifiers:
    """Ask the resources servers to describe themselves.

    `names` maps all known agents to their resources server; `agents` are those whose rollouts are
    to be verified.
    """
    found = Verifiers(servers, {})
    for agent in agents:
        resources = names.get(agent)
        if resources is None:
            found.left_out[agent] = _unknown(agent, names)
            continue
        about = await servers.peers.describe(resources)
        mode = about.get("reverify")
        if mode in ("stateless", "replay"):
            plan = AgentPlan(resources, model_server=None, settings="", **read_verifier(about))
            found.plans[agent] = plan
        elif mode == "never":
            found.left_out[agent] = (
                f"agent '{agent}': its resources server '{resources}' keeps a state that a stored"
                f" response does not bring back (reverify: never): {AGAIN}"
            )
        else:
            found.left_out[agent] = (
                f"agent '{agent}': its resources server '{resources}' does not say that a stored"
                f" response can be verified again (no 'reverify' in its /health): {AGAIN}"
            )
    return found


def _unknown(agent: str, names: Mapping[str, str | None]) -> str:
    if agent in names:
        return (
            f"agent '{agent}': its configuration names no resources_server: give it one, as"
            f" {agent}: {{responses_api_agents: {{…: {{resources_server: {{name: …}}}}}}}}"
        )
    known = ", ".join(names) or "none"
    return (
        f"agent '{agent}': none is called so here{suggest(agent, names)}; there are: {known}. Give"
        " the configuration that its rollouts were collected with"
    )


async def _verifier_name(servers: Servers, agent: str) -> str | None:
    """The resources server of a running agent: from the configuration, or from the agent."""
    if agent not in servers.agents and (environment := servers.environments.get(agent)):
        return environment.resources or await _verifier_name(servers, environment.agent)
    blocks = servers.values.get(agent)
    kinds = blocks.get(AGENTS) if isinstance(blocks, dict) else None
    settings = next(iter(kinds.values()), None) if isinstance(kinds, dict) else blocks
    named = settings.get("resources_server") if isinstance(settings, dict) else None
    if isinstance(named, dict) and isinstance(named.get("name"), str):
        return named["name"]
    try:
        about = await servers.peers.describe(agent)
    except RolloutError:
        return None  # an agent that does not answer names no verifier
    return about.get("resources_server")


class StoredSource(RunSource):
    """Stored responses whose verdict is owed, in the order of their file.

    `stale` are keys whose verdict in the output is outdated but still there, in a dry run.
    """

    generates = False
    lacks = "verdict"

    def __init__(
        self,
        stored: StoredFile,
        verifiers: Verifiers,
        journal: AnyJournal,
        *,
        copies_current: bool,
        names_malformed: bool,
        stale: Collection[Key] = (),
    ) -> None:
        self.stored, self.name, self.survey = stored, stored.source, stored.survey
        self.input_path = stored.path
        self.comparison = Comparison()
        self._plans, self._journal, self._stale = verifiers.plans, journal, stale
        self.left_out = verifiers.left_out
        self._copies_current, self._names_malformed = copies_current, names_malformed
        self._scopes: dict[str, str] = {}
        for agent, shared in {(key.agent, without_arm(key.scope)) for key in self.survey.rows}:
            self._scopes[agent] = min(shared, self._scopes.get(agent, shared))
        in_scope = [key for key in self.survey.rows if self.covers(key.agent, key.scope)]
        self.arm_ids = list(dict.fromkeys(filter(None, map(arm_of_key, in_scope))))
        self._per_task = Counter((key.agent, key.task_id) for key in in_scope)
        self.counts = self._counts()
        self._attempts = Attempts(self._find_owed())

    def next(self) -> Attempt | Later | End:
        return self._attempts.next()

    async def count(self) -> None:
        return

    count_rest = count

    def covers(self, agent: str, scope: str) -> bool:
        return without_arm(scope) == self._scopes.get(agent, "")

    def take(self, outcome: Outcome) -> None:
        if isinstance(outcome, Rollout) and (found := self.survey.rows.get(outcome.key)):
            self.comparison.add(found.reward, outcome)

    async def know_tasks(self) -> None:
        """Learn which rollouts of the output are of tasks of the input, which a limit does not
        narrow."""
        survey, done = self.survey, self._journal.contents.done
        if survey.only is not None:
            return
        own = OwnTasks.of(key.task_id for key in survey.rows)
        if survey.limit and own.count_others(done, self.covers).rollouts:
            lines = read_stored_lines(self.stored.path)
            own = OwnTasks.of(line.key.task_id for line in lines if isinstance(line, Line))
        self.others = own.count_others(done, self.covers)
        self.own = own if self.others.rollouts else None

    def add_earlier(self, rollout: Rollout) -> None:
        self.take(rollout)

    def verifiers(self) -> Collection[str | None]:
        return {plan.resources for plan in self._plans.values()}

    @property
    def num_owed(self) -> int:
        return self.counts.to_verify

    def is_of_this_run(self, key: Key) -> bool:
        return True

    def own_results(self) -> JsonObject:
        return {"verdicts": self.comparison.figures()}

    @property
    def num_tasks(self) -> int:
        return len(self._per_task)

    @property
    def num_in_scope(self) -> int:
        return sum(self._per_task.values())

    @property
    def repeats(self) -> int:
        return max(self._per_task.values())

    def _counts(self) -> Counts:
        tally: Counter[str] = Counter()
        for key, stored in self.survey.rows.items():
            if key.agent not in self._plans:
                tally["left_out"] += 1
                continue
            is_current = self._is_current(key, stored)
            kind = "none" if stored.reward is None else "current" if is_current else "older"
            is_copied = is_current and self._copies_current
            tally[kind] += 1
            tally["done" if self._is_done(key) else "to_copy" if is_copied else "to_verify"] += 1
        return Counts(
            planned=len(self.survey.rows),
            malformed=self.survey.num_malformed,
            without_response=self.survey.without_response,
            done=tally["done"],
            to_verify=tally["to_verify"],
            to_copy=tally["to_copy"],
            left_out=tally["left_out"],
            older=tally["older"],
            current=tally["current"],
            none=tally["none"],
        )

    def _find_owed(self) -> Iterator[Attempt | Later]:
        groups: dict[Group, list[Key]] = {}
        for key in self.survey.rows if self.on_task else ():
            groups.setdefault(group_of(key), []).append(key)
        for read, line in enumerate(read_stored_lines(self.stored.path), 1):
            if read % BREATH == 0:
                yield LATER
            if line.line > self.survey.last_line:
                return
            match line:
                case Malformed() if self._names_malformed:
                    self._journal.append_malformed(line, self.name)
                case Line(number, key, content):
                    chosen = self.survey.rows.get(key)
                    task = Task(key.task_id, content["_ng_task_index"], number, key.agent, {})
                    if self.on_task and (keys := groups.pop(group_of(key), None)):
                        self.on_task((), task._replace(row=row_of(content)), keys)
                    if chosen and chosen.line == number and self._is_owed(key):
                        is_copied = self._copies_current and self._is_current(key, chosen)
                        yield Attempt(key, task, stored=content, is_copied=is_copied)

    def _is_owed(self, key: Key) -> bool:
        return key.agent in self._plans and not self._is_done(key)

    def _is_done(self, key: Key) -> bool:
        return key in self._journal.contents.done and key not in self._stale

    def _is_current(self, key: Key, stored: Stored) -> bool:
        """Whether the verdict is the present verifier's; a verifier without a fingerprint has
        none."""
        verifier = self._plans[key.agent].verifier
        return stored.reward is not None and bool(verifier) and stored.verifier == verifier
