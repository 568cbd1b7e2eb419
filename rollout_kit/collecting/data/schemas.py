"""Rows are checked with the schemas of their servers before anything is sent.

A server whose description has `checks_rows` answers `/rows/check`: it runs NeMo Gym's code, and has
a `task_data.py`. Rows for other servers are checked one by one, when their sessions begin.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import orjson

from ...config.keys import CollectConfig
from ...errors import ConfigError, RolloutError, number_of
from ...launch.reach import Servers
from ...serving.nemo_gym.environment_servers import find_verifier
from ...serving.nemo_gym.row_schema import ROUTE
from ...serving.nemo_gym.rows import flatten
from ...serving.transport.peers import Peers
from ...store.input import number_lines
from ...store.tasks import TaskReader, parse_row, task_id_of
from ..agents import AgentPlan

MAX_ROWS, MAX_BYTES = 5_000, 8 << 20
"""Of one request, during which the server answers no other."""

MAX_NAMED = 5
"""Problems that a message names."""


async def check_rows(
    command: CollectConfig,
    servers: Servers,
    reader: TaskReader,
    plans: Mapping[str, AgentPlan],
    name: str,
) -> list[str]:
    """Check the input, which the user calls `name`; ConfigError if rows break a schema and the
    command asks for an error. Returns what people should know."""
    mode = command.task_data_validation
    if mode == "off" or not reader.path.is_file():
        return []
    owners = await _find_owners(servers, plans)
    checks = {owner: SchemaCheck(servers.peers, owner, name) for owner in owners.values()}
    for number, raw, agents in _read_rows(reader) if checks else ():
        for owner in dict.fromkeys(owners[agent] for agent in agents if agent in owners):
            await checks[owner].add(number, raw)
    for check in checks.values():
        await check.send()
    refused = [text for check in checks.values() for text in check.describe_problems()]
    notes = [text for check in checks.values() for text in check.describe_rest()]
    if refused and mode == "error":
        raise ConfigError(
            "\n".join(refused) + "\nNothing was sent. Correct the rows, or send them as they are"
            " with +task_data_validation=warn"
        )
    return [f"warning: {text}" for text in refused + notes]


async def _find_owners(servers: Servers, plans: Mapping[str, AgentPlan]) -> dict[str, str]:
    """Agent → the server whose schema its rows have: what verifies them, or the agent itself."""
    found = {}
    for agent, plan in plans.items():
        server = plan.server or agent
        named = find_verifier(servers.values, agent) or find_verifier(servers.values, server)
        owner = plan.resources or named or server
        with suppress(RolloutError):  # a foreign server, or one that is not there
            if (await servers.peers.describe(owner)).get("checks_rows") is True:
                found[agent] = owner
    return found


def _read_rows(reader: TaskReader) -> Iterator[tuple[int, bytes, Sequence[str]]]:
    """The lines that this run reads, with the agents that run them; without malformed ones."""
    num_tasks = 0
    for number, raw in number_lines(reader.path):
        if reader.limit and num_tasks >= reader.limit:
            return
        with suppress(ValueError):  # the run names these lines
            row = flatten(parse_row(raw))
            agents = reader.agents_of(row)
            reader.row_to_send(row)
            num_tasks += 1
            if reader.is_mine is None or reader.is_mine(task_id_of(row)):
                yield number, raw.strip(), agents


@dataclass(slots=True)
class SchemaCheck:
    """Rows of one server, and what its schema says about them."""

    peers: Peers
    server: str
    input: str
    error: str = ""
    """Why the schema cannot be used."""
    _lines: list[int] = field(default_factory=list)
    _waiting: list[bytes] = field(default_factory=list)
    _size: int = 0
    _num_rows: int = 0
    _num_refused: int = 0
    _problems: list[str] = field(default_factory=list)
    _unknown: Counter[str] = field(default_factory=Counter)

    async def add(self, line: int, raw: bytes) -> None:
        """Have a row, the JSON of a line, checked with others."""
        if self._size + len(raw) > MAX_BYTES or len(self._waiting) == MAX_ROWS:
            await self.send()
        self._lines.append(line)
        self._waiting.append(raw)
        self._size += len(raw)

    async def send(self) -> None:
        """Check the rows that wait; ConfigError if the server cannot answer."""
        lines, rows = self._lines, [orjson.Fragment(raw) for raw in self._waiting]
        self._lines, self._waiting, self._size = [], [], 0
        if self.error or not rows:
            return
        try:
            reply = await self.peers.call(self.server, ROUTE, {"rows": rows})
        except RolloutError as error:
            raise ConfigError(
                f"{self.server}: the rows of {self.input} cannot be checked: {error};"
                " +task_data_validation=off leaves this out"
            ) from None
        self.error = reply.get("error", "")
        self._num_rows += len(rows)
        self._num_refused += len({place for place, _, _ in reply["problems"]})
        self._unknown.update(reply["unknown"])
        for place, name, reason in reply["problems"][: MAX_NAMED - len(self._problems)]:
            where = f"{self.input}:{lines[place]}"
            self._problems.append(f"  {where}: {name}{': ' if name else ''}{reason}")

    def describe_problems(self) -> list[str]:
        """The rows that break the schema, on several lines; nothing if all are right."""
        if not self._num_refused:
            return []
        rows = f"{self._num_refused:,} of {number_of(self._num_rows, 'row')}"
        first = f"{self.input}: {rows} for '{self.server}' break the schema of its task_data.py"
        return ["\n".join([f"{first}; the first problems:", *self._problems])]

    def describe_rest(self) -> list[str]:
        """What the schema does not decide."""
        if self.error:
            return [f"{self.server}: the rows are not checked: {self.error}"]
        named = [f"{key} ({number_of(n, 'row')})" for key, n in sorted(self._unknown.items())]
        what = f"fields that the schema of '{self.server}' does not declare"
        return [f"{self.input}: {what}: {', '.join(named)}"] if named else []
