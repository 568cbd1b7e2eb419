"""Rollouts for TRL's `GRPOTrainer`, by its `rollout_func`.

    rollouts = TrlRollouts("http://127.0.0.1:11000", rows, CheckpointManager(weights, base=model))
    GRPOTrainer(..., train_dataset=rollouts.dataset(), rollout_func=rollouts,
                reward_funcs=[rollout_reward])

Before each batch the trainer's weights are written as a step; the rollouts require that version, so
they are on policy. TRL passes prompts only, so each row is found by its prompt.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...api.sync import collect_sync
from ...errors import ConfigError
from ...responses import input_items
from ...types import JsonObject, Rollout
from ..weights.checkpoints import CheckpointManager
from .trainer_run import read_outcome, read_sequence


def rollout_reward(completions: Sequence[Any], reward: Sequence[float], **_: Any) -> list[float]:
    """Reward function: the rewards that the rollouts were given."""
    return list(reward)


class TrlRollouts:
    """A `rollout_func`: the rollouts of `rows`, made by `where`: the URL of an `ng_run`,
    or a YAML file. `keys` are those of `collect`, such as `num_samples_in_parallel`."""

    def __init__(
        self,
        where: str | Path,
        rows: Iterable[JsonObject],
        manager: CheckpointManager,
        **keys: Any,
    ) -> None:
        self._where, self._manager, self._keys = where, manager, keys
        self._rows: dict[str, JsonObject] = {}
        for row in rows:
            name = _name(row["responses_create_params"]["input"])
            if self._rows.setdefault(name, row) != row:
                raise ConfigError(f"two rows have the same prompt, and TRL names no row: {name}")
        self._published = 0

    def dataset(self) -> Any:
        """The prompts as TRL's training set."""
        from datasets import Dataset  # type: ignore[import-not-found]

        return Dataset.from_list([{"prompt": json.loads(name)} for name in self._rows])

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> JsonObject:
        version = int(trainer.state.global_step) + 1
        if version != self._published:
            self._manager.save(trainer.accelerator.unwrap_model(trainer.model), None, version)
            self._published = version
        found = self._collect(list(map(_name, prompts)), version, trainer.args.temperature)
        made: JsonObject = defaultdict(list)
        for name in map(_name, prompts):
            rollout = found[name].pop()
            sequence = read_sequence(rollout)
            start = len(sequence.turns[0].added)
            made["prompt_ids"].append(sequence.token_ids[:start])
            made["completion_ids"].append(sequence.token_ids[start:])
            made["logprobs"].append(sequence.log_probs[start:])
            made["env_mask"].append([int(each) for each in sequence.is_generated[start:]])
            made["reward"].append(rollout.training_reward)
        return dict(made)

    def _collect(
        self, names: Sequence[str], version: int, temperature: float
    ) -> Mapping[str, list[Rollout]]:
        """The rollouts of each prompt, as many as it was named."""
        if unknown := [name for name in names if name not in self._rows]:
            raise ConfigError(f"TRL asks for a prompt that is in no row: {unknown[0]:.200}")
        given = self._keys.get("responses_create_params", {})
        params = {"temperature": temperature, "return_token_ids": True, **given}
        params["require_version"] = version
        tasks = [self._rows[name] for name in names]
        keys = {**self._keys, "responses_create_params": params}
        found: dict[str, list[Rollout]] = defaultdict(list)
        for outcome in collect_sync(self._where, tasks, **keys):
            if (rollout := read_outcome(outcome)) is None:
                continue
            found[_name(rollout.line["responses_create_params"]["input"])].append(rollout)
        return found


def _name(prompt: Any) -> str:
    """A prompt as text: its roles and contents."""
    messages = input_items({"input": prompt})
    return json.dumps([{"role": each.get("role"), "content": each["content"]} for each in messages])
