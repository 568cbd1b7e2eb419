"""Evaluations beside a training: at every so many versions of the weights, the buffer hands out no
group until all sets of held-out tasks are answered by that version.

Each set has an output for each version, so an evaluation that was interrupted continues. A line of
`<stem>.d/evaluations.jsonl` has its reward, and the difference to the first evaluation, task by
task.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...analysis.comparison import compare_files
from ...api.arguments import read_keys
from ...api.reached import Reach
from ...api.runs import Collecting
from ...collecting.pacing.give_up import UNREACHED
from ...collecting.run import Run
from ...config.keys import CollectConfig, CompareConfig
from ...errors import ConfigError, RolloutError, StopRun, number_of
from ...launch.reach import Servers
from ...reading import parse_line, read_lines
from ...serving.model import REQUIRE_VERSION
from ...store.lines import now_text
from ...types import Failure, JsonObject, Say
from ..buffer.buffer import Buffer
from .eval_file import EvaluationFile, EvaluationSet

LOOK_S = 0.2
"""How often the trainer's version is looked at."""

AGAIN_S = 15.0
"""Pause before a set is tried again whose servers were not reached."""

Z = 1.96
"""Half of a 95 % interval, in standard errors."""


Ask = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Asks a buffer until it is reached."""


class Evaluations:
    """For one run into one buffer. `take` receives the figures of each evaluation."""

    def __init__(
        self,
        buffer: Buffer,
        run: Run,
        asked: EvaluationFile,
        every: int,
        say: Say,
        take: Callable[[int, Mapping[str, float]], object],
        ask: Ask,
    ) -> None:
        self._buffer, self._run, self._every, self._ask = buffer, run, every, ask
        self._sets, self._say, self._take = asked.list_sets(), say, take
        self._looking = asyncio.Lock()
        output = run.command.output_jsonl_fpath
        assert output is not None
        self._folder = Path(output).with_suffix(".d") / "evaluations"
        self._path = self._folder.with_suffix(".jsonl")
        self.lines: list[JsonObject] = [
            line for _, raw in read_lines(self._path) if (line := parse_line(raw))
        ]
        """One line for each set and version, in the order of the versions."""

    async def begin(self) -> None:
        """Have the buffer wait at the versions that are evaluated."""
        await self._ask(partial(self._buffer.hold_every, self._every))

    async def work(self) -> None:
        """Evaluate each version that is due, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Evaluate the trainer's version, if it is due."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        stats = await self._ask(self._buffer.stats)
        if stats["hold_every"] != self._every:  # the buffer was started again
            await self.begin()
        version = stats["version"]
        if version is None or version % self._every or stats["let_go"] == version:
            return
        if not self._is_done(version):
            await self._evaluate(version)
        await self._ask(partial(self._buffer.let_go, version, self.best))

    @property
    def best(self) -> int | None:
        """The version with the highest mean reward on the first set; None before any."""
        of_first = [line for line in self.lines if line["set"] == next(iter(self._sets))]
        return max(of_first, key=lambda line: line["reward"])["version"] if of_first else None

    def report(self) -> str:
        """The first and the last evaluation, in a line; empty if there was none."""
        found: list[str] = []
        for name in self._sets:
            of = [line for line in self.lines if line["set"] == name]
            if len(of) > 1:
                found.append(f"{name} {of[0]['reward']:.3f} → {_describe(of[-1])}")
        return f"Evaluations: {'; '.join(found)}; best: version {self.best}" if found else ""

    def _is_done(self, version: int) -> bool:
        return {line["set"] for line in self.lines if line["version"] == version} >= {*self._sets}

    async def _evaluate(self, version: int) -> None:
        """Evaluate the sets that have no line yet. One whose servers are down is tried again."""
        figures: dict[str, float] = {}
        known = {line["set"]: line for line in self.lines if line["version"] == version}
        is_said = False
        while self._sets.keys() - known.keys():
            unreached: RolloutError | None = None
            for name in [each for each in self._sets if each not in known]:
                found = await self._evaluate_set(name, self._sets[name], version)
                if isinstance(found, RolloutError):
                    unreached = found
                    continue
                self._append(found)
                known[name] = found
                said = f"evaluation of version {version}: {name} {_describe(found)}"
                self._say(said, event="evaluation")
            if unreached is not None:
                if not is_said:
                    why = f"the evaluation of version {version} waits: {unreached}"
                    self._say(why, event="evaluation_waits", version=version)
                is_said = True
                await asyncio.sleep(AGAIN_S)
        for name, line in known.items():
            prefix = f"eval/{name}"
            figures |= {
                f"{prefix}/{key}": line[key] for key in FIGURES if line.get(key) is not None
            }
        self._take(version, figures)

    async def _evaluate_set(
        self, name: str, asked: EvaluationSet, version: int
    ) -> JsonObject | RolloutError:
        """The line of a set; the error of a server that is not reached, if tasks lack answers for
        that reason. They are asked again the next time."""
        output = self._output_of(name, version)
        output.parent.mkdir(parents=True, exist_ok=True)
        peers = self._run.runner.peers
        params = dict(asked.responses_create_params)
        if await self._follows_weights(asked.agent_name):
            params[REQUIRE_VERSION] = version
        keys: dict[str, Any] = asked.model_dump(exclude={"input_jsonl_fpath"})
        command = read_keys(CollectConfig, output, {**keys, "responses_create_params": params})
        reach = Reach(Servers(peers, [asked.agent_name], {}, {}))
        run = Collecting(reach, asked.input_jsonl_fpath, command)
        failures: list[Failure] = []
        try:
            async for outcome in run:
                if isinstance(outcome, Failure):
                    failures.append(outcome)  # noqa: PERF401 (kept when the run is stopped)
        except StopRun as error:
            if (unreached := _find_unreached(failures)) is None:
                raise ConfigError(f"eval: {name}: {error}") from None
            return unreached
        if (unreached := _find_unreached(failures)) is not None:
            return unreached
        if failures:
            what = f"{number_of(len(failures), 'rollout')} of {name} failed: {failures[0].error}"
            self._say(f"evaluation of version {version}: {what}", event="evaluation_failures")
        return self._measure(name, version, run.metrics or {})

    def _measure(self, name: str, version: int, metrics: JsonObject) -> JsonObject:
        line: JsonObject = {"set": name, "version": version, "at": now_text()}
        reward, bounds = (metrics.get("metrics") or {}).get("reward"), None
        if reward is None:
            raise ConfigError(f"eval: {name}: no rollout of version {version} has a reward")
        bounds = (metrics.get("intervals") or {}).get("reward")
        line |= {"reward": reward, "rollouts": metrics["counts"]["rollouts"]}
        if bounds:
            line |= {"reward_low": bounds[0], "reward_high": bounds[1]}
            line["reward_error"] = (bounds[1] - bounds[0]) / (2 * Z)
        first = next((each for each in self.lines if each["set"] == name), None)
        if first is not None and first["version"] != version:
            paths = [self._output_of(name, each) for each in (first["version"], version)]
            asked = CompareConfig.model_validate({"inputs": list(map(str, paths))})
            [pair] = compare_files(asked)["pairs"]
            line |= {"gain": pair["difference"], "first_version": first["version"]}
            if pair.get("interval"):
                line |= dict(zip(("gain_low", "gain_high"), pair["interval"], strict=True))
        return line

    async def _follows_weights(self, agent: str) -> bool:
        peers = self._run.runner.peers
        try:
            model = (await peers.describe(agent)).get("model_server")
            told = await peers.call(model, "/weight_version", None) if model else {}
        except RolloutError:
            return False
        return told.get("version") is not None

    def _output_of(self, name: str, version: int) -> Path:
        return self._folder / f"{name}_{version}.jsonl"

    def _append(self, line: JsonObject) -> None:
        self.lines.append(line)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _find_unreached(failures: Iterable[Failure]) -> RolloutError | None:
    """The error of a server that was not reached."""
    return next((each.error for each in failures if each.error.status in UNREACHED), None)


FIGURES = ("reward", "reward_error", "reward_low", "reward_high", "gain", "gain_low", "gain_high")
"""Fields of a line that are figures of the training."""


def _describe(line: JsonObject) -> str:
    said = f"{line['reward']:.3f}"
    if (low := line.get("reward_low")) is not None:
        said += f" [{low:.3f}, {line['reward_high']:.3f}]"
    if (gain := line.get("gain")) is None:
        return said
    bounds = line.get("gain_low"), line.get("gain_high")
    between = "" if None in bounds else " [{:+.3f}, {:+.3f}]".format(*bounds)
    return f"{said}, {gain:+.3f}{between} since version {line['first_version']}"
