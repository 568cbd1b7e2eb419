"""What NeMo-RL imports of NeMo Gym, on servers of this toolkit.

NeMo-RL starts NeMo Gym itself, in an actor that imports `nemo_gym`. With the folder `STAND_IN` in
front of that actor's `PYTHONPATH` it gets these classes: its configuration starts our servers in
the actor's process, and `run_examples` is one collection. Rows name their agent (`agent_ref`).
"""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...errors import ConfigError
from ...serving.registry import resolve_path
from ...trajectory import GENERATION, PROMPT, SUFFIX, sequences
from ...types import JsonObject
from .trainer_run import TrainerRun

STAND_IN = Path(__file__).parent / "stand_in"
"""The folder that holds a package `nemo_gym`."""

HEAD_SERVER_KEY_NAME = "head_server"

POLICY_KEYS = ("policy_base_url", "policy_api_key", "policy_model_name")
"""Values that NeMo-RL sets for `${…}` in YAML files."""


@dataclass
class GlobalConfigDictParserConfig:
    """What `RunHelper.start` is given: `initial_global_config_dict` is what counts."""

    initial_global_config_dict: Any = None
    dotenv_path: Any = None
    skip_load_from_cli: bool = True


@dataclass
class BaseServerConfig:
    """The address of a head server, which is not asked here."""

    host: str
    port: int


class RunHelper:
    """The servers of this process; they start with the first rollout."""

    values: ClassVar[JsonObject] = {}
    run: ClassVar[TrainerRun | None] = None

    def start(self, global_config_dict_parser_config: GlobalConfigDictParserConfig) -> None:
        from omegaconf import OmegaConf

        given = global_config_dict_parser_config.initial_global_config_dict
        RunHelper.values = json.loads(json.dumps(OmegaConf.to_container(OmegaConf.create(given))))
        config, output_dir = read_values(RunHelper.values)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
            json.dump(config, file)
        RunHelper.run = TrainerRun(None, [file.name], output_dir=output_dir)

    def poll(self) -> None:
        """Raise the error that has ended the servers, if there is one."""
        if self.run:
            self.run.check()

    def shutdown(self) -> None:
        RunHelper.run = None


class RolloutCollectionHelper:
    def run_examples(
        self, examples: Iterable[JsonObject], head_server_config: Any = None, semaphore: Any = None
    ) -> Iterator[Awaitable[tuple[JsonObject, JsonObject]]]:
        """A pair of each row and its verified result, in the order in which they end."""
        if (run := RunHelper.run) is None:
            raise ConfigError("RunHelper.start has not been called in this process")
        return asyncio.as_completed([_roll_out(run, row) for row in examples])


async def _roll_out(run: TrainerRun, row: JsonObject) -> tuple[JsonObject, JsonObject]:
    rollout = await run.roll_out({name: row[name] for name in row if name != "_rowidx"})
    line = rollout.line
    return row, {**line, "response": with_whole_prompts(line["response"])}


def with_whole_prompts(response: JsonObject) -> JsonObject:
    """A copy of a response in which every turn with token ids has its whole prompt."""
    output = [dict(item) for item in response.get("output") or ()]
    prompts = (prompt for one in sequences(output) for prompt, _ in one.pair_turns())
    for item in output:
        if GENERATION in item:
            item.pop(SUFFIX, None)
            item[PROMPT] = next(prompts)
    return {**response, "output": output}


def read_values(values: JsonObject) -> tuple[JsonObject, str | None]:
    """NeMo Gym's configuration as ours, and the folder for rollouts (`rollouts_dir`). Its settings
    of ports, Ray and environments concern servers of its own."""
    paths = list(values.get("config_paths") or ())
    files = [found.read_text() for path in paths if (found := resolve_path(path))]
    texts = [json.dumps(values), *files]
    kept = {
        name: value
        for name, value in values.items()
        if name == "config_paths"
        or (isinstance(value, dict) and name != HEAD_SERVER_KEY_NAME)
        or (name in POLICY_KEYS and any("${" + name in text for text in texts))
    }
    return kept, values.get("rollouts_dir")


def get_global_config_dict() -> Any:
    """The configuration that `RunHelper` was started with."""
    from omegaconf import OmegaConf

    return OmegaConf.create(RunHelper.values)
