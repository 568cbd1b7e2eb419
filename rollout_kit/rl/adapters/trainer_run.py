"""Rollouts in the process of a trainer that owns its engine.

    run = TrainerRun(TrainerEngine(generate, tokenizer), "my.yaml", output_dir="run/rollouts")
    rollout = await run.roll_out(row)
    await run.close()

The YAML names the servers; its policy model is `trainer_model`, which asks the engine. It answers
over HTTP too, for agents and verifiers that are placed in other processes. All rollouts are one
collection: retried, verified and journalled as ever.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from ...api.runs import collect
from ...api.servers import servers
from ...errors import ConfigError, StopRun
from ...launch.reach import Servers
from ...serving.nemo_gym.rows import flatten
from ...serving.transport.peers import Local
from ...store.tasks import agent_name_of, task_id_of
from ...trajectory import TokenSequence, sequences
from ...types import JsonObject, Outcome, Rollout
from .engine import TrainerEngine

POLICY = "policy_model"

NOT_HERE = {"num_repeats", "skip_verification", "limit", "output"}
"""Keys of `collect` without a meaning here."""


class TrainerRun:
    """The servers start with the first rollout. Without an engine the policy model is what the YAML
    says. `output_dir` gets a file for each run; `keys` are those of `collect`."""

    def __init__(
        self,
        engine: TrainerEngine | None,
        config_paths: str | Path | Iterable[str | Path],
        *,
        overrides: Sequence[str] = (),
        output_dir: str | Path | None = None,
        policy_model: str = POLICY,
        **keys: Any,
    ) -> None:
        for name in NOT_HERE & keys.keys():
            raise ConfigError(
                f"{name}: a trainer asks for each rollout and its verdict; leave it out"
            )
        self._engine, self._policy = engine, policy_model
        is_one = isinstance(config_paths, str | Path)
        self._paths = [config_paths] if is_one else list(config_paths)
        self._overrides = list(overrides)
        self.output = Path(output_dir, f"rollouts_{uuid4().hex[:8]}.jsonl") if output_dir else None
        self._keys = {"num_samples_in_parallel": 1024, "strict_input": True, **keys}
        self._rows: asyncio.Queue[JsonObject | None] = asyncio.Queue()
        self._waiting: defaultdict[tuple[str, str], list[asyncio.Future[Rollout]]]
        self._waiting = defaultdict(list)
        self._serving: asyncio.Task[None] | None = None

    async def roll_out(self, row: JsonObject) -> Rollout:
        """The verified rollout of a task; StopRun if it failed or has no verdict."""
        row = flatten(orjson.loads(orjson.dumps(row)))
        agent = self._keys.get("agent_name") or agent_name_of(row)
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        if self._serving.done():
            await self._serving
            raise StopRun("the run of this trainer is closed")
        found: asyncio.Future[Rollout] = asyncio.get_running_loop().create_future()
        self._waiting[task_id_of(row), str(agent)].append(found)
        self._rows.put_nowait(row)
        await asyncio.wait({found, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if not found.done():
            await self._serving
            raise StopRun("the collection ended before this rollout")
        return await found

    def check(self) -> None:
        """Raise what has ended the servers, if anything has."""
        if self._serving and self._serving.done():
            self._serving.result()

    async def close(self) -> None:
        """Let the rollouts in flight end, and stop the servers."""
        if self._serving and not self._serving.done():  # else its error has been told
            self._rows.put_nowait(None)
            await self._serving

    async def _serve(self) -> None:
        async with servers(*self._paths, overrides=self._overrides) as found:
            if self._engine:
                self._attach(found)
            async for outcome in collect(found, self._get_rows(), output=self.output, **self._keys):
                self._settle(outcome)

    def _attach(self, found: Servers) -> None:
        """Give the policy model of these servers the engine."""
        transport = found.peers.transport(self._policy)
        service = transport.service if isinstance(transport, Local) else None
        if (put_in := getattr(service, "use_engine", None)) is None:
            what = "must be a trainer_model in this process, where the engine is"
            raise ConfigError(f"{self._policy}: {what}")
        put_in(self._engine)

    async def _get_rows(self) -> AsyncIterator[JsonObject]:
        while (row := await self._rows.get()) is not None:
            yield row

    def _settle(self, outcome: Outcome) -> None:
        """Hand an outcome to one that waits for it; equal rows are interchangeable."""
        error: StopRun | None = None
        rollout = None
        try:
            if (rollout := read_outcome(outcome)) is None:
                return
        except StopRun as failed:
            error = failed
        waiting = self._waiting[outcome.key.task_id, outcome.key.agent]
        while waiting:
            found = waiting.pop(0)
            if found.done():  # its caller was cancelled
                continue
            if error is None:
                assert rollout is not None
                found.set_result(rollout)
            else:
                found.set_exception(error)
            return


def read_outcome(outcome: Outcome) -> Rollout | None:
    """The rollout; None if its verdict is still to come, so that it comes again. StopRun if it
    failed or gets no verdict."""
    if isinstance(outcome, Rollout) or outcome.error is None:
        return outcome if isinstance(outcome, Rollout) else None
    raise StopRun(f"a rollout failed: {outcome.error}")


def read_sequence(rollout: Rollout) -> TokenSequence:
    """The one token sequence of a rollout; StopRun if it has several."""
    found = sequences(rollout.response.get("output") or ())
    if len(found) != 1:
        raise StopRun(f"a rollout is {len(found)} token sequences; this trainer takes one of each")
    return found[0]


def with_params(row: JsonObject, params: JsonObject) -> JsonObject:
    """A task with the trainer's sampling parameters; -1 as `top_k` and None stand for none."""
    given = {
        name: value
        for name, value in params.items()
        if value is not None and (name, value) != ("top_k", -1)
    }
    return {**row, "responses_create_params": {**row["responses_create_params"], **given}}
