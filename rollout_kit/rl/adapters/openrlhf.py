"""OpenRLHF's agent executor on servers of this toolkit: rollouts run in the process of an engine's
actor and ask that engine. The file that `--train.agent_func_path` names:

    from rollout_kit.rl.adapters.openrlhf import RolloutAgentExecutor

    class AgentExecutor(RolloutAgentExecutor):
        config_paths = ["my.yaml"]
        output_dir = "run/rollouts"

The task is the label (`--data.label_key`), as JSON.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

from openrlhf.utils.agent import AgentExecutorBase  # type: ignore[import-not-found]

from ...types import JsonObject, Rollout
from .engine import Sampled, TrainerEngine
from .trainer_run import TrainerRun, read_sequence, with_params


class RolloutAgentExecutor(AgentExecutorBase):
    """One rollout for each prompt. Temperature, top_p, top_k and the most tokens are OpenRLHF's.
    OpenRLHF's engines tell no version of the weights."""

    config_paths: ClassVar[Sequence[str]] = ()
    output_dir: ClassVar[str | None] = None
    overrides: ClassVar[Sequence[str]] = ()
    collect: ClassVar[Mapping[str, Any]] = {}
    """Keys of the collection, such as `agent_name`."""

    def __init__(self) -> None:
        self._run: TrainerRun | None = None
        self._engine: Any = None
        self._sampling: Any = None
        self._max_length = 0

    async def execute(
        self,
        prompt: Any,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> JsonObject:
        self._engine, self._sampling, self._max_length = llm_engine, sampling_params, max_length
        if self._run is None:
            self._run = TrainerRun(
                TrainerEngine(self._generate, hf_tokenizer),
                self.config_paths,
                overrides=self.overrides,
                output_dir=self.output_dir,
                **self.collect,
            )
        names = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}
        names["max_output_tokens"] = "max_tokens"
        params = {name: getattr(sampling_params, own, None) for name, own in names.items()}
        rollout = await self._run.roll_out(with_params(json.loads(label), params))
        return {"prompt": prompt, "label": label, "images": images, **_read(rollout)}

    async def _generate(self, prompt: list[int], sampling: JsonObject, session: str) -> Sampled:
        asked, room = deepcopy(self._sampling), self._max_length - len(prompt)
        if room < 1:
            return Sampled([], [], "length")
        for name, value in sampling.items():
            setattr(asked, name, value)
        asked.max_tokens = min(sampling.get("max_tokens") or room, room)
        asked.logprobs = asked.logprobs or 1
        made = (await self._engine.generate(prompt, asked)).outputs[0]
        token_ids = list(made.token_ids)
        pairs = zip(token_ids, made.logprobs, strict=True)
        return Sampled(token_ids, [each[one].logprob for one, each in pairs], made.finish_reason)


def _read(rollout: Rollout) -> JsonObject:
    """What OpenRLHF makes an `Experience` of."""
    sequence, ranges, at = read_sequence(rollout), [], 0
    for turn in sequence.turns:
        start = at + len(turn.added)
        at = start + len(turn.generation)
        ranges.append((start, at))
    reward = rollout.training_reward
    return {
        "mm_train_inputs": None,
        "observation_tokens": sequence.token_ids,
        "action_ranges": ranges,
        "rollout_log_probs": sequence.log_probs,
        "reward": reward,
        "scores": reward,
        "truncated": rollout.response.get("status") == "incomplete",
        "extra_logs": {"turns": float(len(sequence.turns))},
    }
