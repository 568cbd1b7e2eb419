"""verl's agent loop on servers of this toolkit: the rollouts of a worker run in its process and ask
verl's own inference servers. In the file that `rollout.agent.agent_loop_config_path` names:

    - name: rollout_kit
      _target_: rollout_kit.rl.adapters.verl.RolloutAgentLoop
      config_paths: [my.yaml]
      output_dir: run/rollouts

`verl_row` makes a row of verl's data set from a task.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from verl.experimental.agent_loop.agent_loop import (  # type: ignore[import-not-found]
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from ...errors import ConfigError
from ...responses import content_texts, input_items
from ...trajectory import Versions
from ...types import JsonObject, Rollout
from .engine import Sampled, TrainerEngine, ends_turn
from .trainer_run import TrainerRun, read_sequence, with_params

FINISHED = {"completed": "stop", "stop": "stop", "aborted": "abort"}
"""verl's reasons → ours. verl calls a turn `completed` also if it was cut off."""


def verl_row(row: JsonObject, index: int, agent_loop: str = "rollout_kit") -> JsonObject:
    """A task as a row of verl's `RLHFDataset`."""
    agent = (row.get("agent_ref") or {}).get("name", agent_loop)
    items = input_items(row["responses_create_params"])
    prompt = [
        {"role": each.get("role", "user"), "content": "".join(content_texts(each.get("content")))}
        for each in items
    ]
    return {
        "data_source": agent,
        "agent_name": agent_loop,
        "prompt": prompt,
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index, "row": json.dumps(row)},
    }


class RolloutAgentLoop(AgentLoopBase):
    """One rollout of the task in `extra_info.row`. Temperature, top_p and top_k are verl's."""

    _runs: ClassVar[WeakKeyDictionary[Any, TrainerRun]] = WeakKeyDictionary()
    """The run of each client of inference servers: a worker has one."""

    def __init__(
        self,
        *given: Any,
        config_paths: Sequence[str] = (),
        output_dir: str | None = None,
        overrides: Sequence[str] = (),
        collect: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*given, **named)
        if self.server_manager not in self._runs:
            engine = TrainerEngine(
                self._generate, self.tokenizer, dict(self.apply_chat_template_kwargs)
            )
            self._runs[self.server_manager] = TrainerRun(
                engine,
                list(config_paths),
                overrides=list(overrides),
                output_dir=output_dir,
                **(collect or {}),
            )

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        names = ("temperature", "top_p", "top_k")
        task = with_params(
            json.loads(row["extra_info"]["row"]), {each: sampling_params[each] for each in names}
        )
        return self._read(await self._runs[self.server_manager].roll_out(task))

    def _read(self, rollout: Rollout) -> AgentLoopOutput:
        sequence, limits = read_sequence(rollout), self.rollout_config
        start = len(sequence.turns[0].added)
        end = start + limits.response_length
        if start > limits.prompt_length:
            what = (
                f"a prompt of {start} tokens exceeds rollout.prompt_length={limits.prompt_length}"
            )
            raise ConfigError(what)
        versions = sequence.versions or (None, None)
        return AgentLoopOutput(
            prompt_ids=sequence.token_ids[:start],
            response_ids=sequence.token_ids[start:end],
            response_mask=[int(each) for each in sequence.is_generated[start:end]],
            response_logprobs=sequence.log_probs[start:end],
            reward_score=rollout.training_reward,
            num_turns=2 * len(sequence.turns),
            metrics=AgentLoopMetrics(),
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "min_global_steps": versions[0],
                "max_global_steps": versions[1],
            },
        )

    async def _generate(self, prompt: list[int], sampling: JsonObject, session: str) -> Sampled:
        asked = {"repetition_penalty": 1.0, **sampling, "logprobs": True}
        made = await self.server_manager.generate(
            request_id=session, prompt_ids=prompt, sampling_params=asked
        )
        reason = FINISHED.get(made.stop_reason, made.stop_reason or "stop")
        if reason == "stop" and not ends_turn(self.tokenizer, made.token_ids):
            reason = "length"
        first = made.extra_fields.get("min_global_steps", made.extra_fields.get("global_steps"))
        last = made.extra_fields.get("max_global_steps", first)
        versions = None if first is None or last is None else Versions(first, last)
        return Sampled(list(made.token_ids), list(made.log_probs or ()), reason, versions)
