"""The policy of a trainer that owns its engine: prompts go to the trainer's `generate` as token
ids, and what it sampled comes back as a response. `rollout_kit.rl.adapters` puts the engine in."""

from contextlib import nullcontext
from itertools import chain
from typing import Any

from pydantic import Field

from rollout_kit.errors import ModelError, TaskError
from rollout_kit.responses import find_tool_calls, message_item
from rollout_kit.rl.adapters.engine import SAMPLING, Sampled, TrainerEngine
from rollout_kit.rl.partial import PartialTurn, PartialTurns, name_request
from rollout_kit.serving.endpoints.chat import RAW
from rollout_kit.serving.endpoints.params import find_problems, find_unfollowed
from rollout_kit.serving.endpoints.replies import from_chat
from rollout_kit.serving.model import Model, ModelConfig
from rollout_kit.serving.service import OPERATIONAL
from rollout_kit.session import current_session
from rollout_kit.trajectory import (
    GENERATION,
    LOG_PROBS,
    STOPPED_BY,
    TEMPERATURE,
    prompt_fields,
    stamp_tokens,
)
from rollout_kit.types import JsonObject

from .conversation import read_conversation
from .resuming import sample

CANNOT = (
    *("logit_bias", "top_logprobs", "chat_template_kwargs"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
)
"""Create params that no engine follows."""


class TrainerModelConfig(ModelConfig):
    model_name: str = Field("policy", description="Name of the model in responses.")
    temperature: float = Field(1.0, ge=0, description="Temperature of requests that set none.")
    max_output_tokens: int | None = Field(
        None, ge=1, description="Token limit of requests that set none. Empty: the trainer's."
    )
    resume_turns: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Continue from the tokens of a turn that the engine has aborted.",
    )


class TrainerModel(Model):
    """Every response has its token ids and log-probs."""

    Config = TrainerModelConfig
    is_own = True
    config: TrainerModelConfig
    _engine: TrainerEngine | None = None

    def __init__(self, config: TrainerModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._partial_turns = PartialTurns() if config.resume_turns else None

    def use_engine(self, engine: TrainerEngine) -> None:
        """Ask this engine from now on."""
        self._engine = engine

    def model_name(self) -> str:
        return self.config.model_name

    def load_figures(self) -> JsonObject:
        resumed = self._partial_turns.figures() if self._partial_turns else {}
        return {**super().load_figures(), **resumed}

    async def responses(self, params: JsonObject) -> JsonObject:
        engine = self._engine
        if engine is None:
            what = "there is no engine: only an adapter of rollout_kit.rl, in a trainer, puts it in"
            raise ModelError(what, status=503, retryable=False)
        request = name_request(params) if self._partial_turns else ""
        await self.wait_for_version(params)
        _check(params)
        asked, sampling = read_conversation(params, engine), self._sampling(params)
        session = current_session()
        kept = self._partial_turns.resume(request) if self._partial_turns else None
        with kept or nullcontext(PartialTurn()) as turn:
            name = session.id if session else ""
            sampled = await sample(engine, asked.prompt, sampling, name, turn)
        text = engine.decode(sampled.token_ids)
        response = from_chat(self._completion(asked.prompt, sampled, text, params), params)
        if sampled.token_ids:
            output = response["output"] = response["output"] or [message_item("")]
            output[-1] |= prompt_fields(asked.prompt, asked.before, asked.restart)
            output[-1] |= {GENERATION: sampled.token_ids, LOG_PROBS: sampled.log_probs}
            output[-1][TEMPERATURE] = sampling["temperature"]
            if sampled.finish_reason != "stop":
                output[-1][STOPPED_BY] = sampled.finish_reason
            if sampled.versions:
                sampled.versions.stamp(output)
            stamp_tokens(output, sampled.token_versions)
        return response

    async def count_input(self, params: JsonObject) -> int:
        if self._engine is None:
            return await super().count_input(params)
        _check(params)
        return len(read_conversation(params, self._engine).prompt)

    def _sampling(self, params: JsonObject) -> JsonObject:
        """What the engine is asked for, by the names that engines use."""
        own = {"temperature": self.config.temperature, "max_tokens": self.config.max_output_tokens}
        given = {to: params[name] for name, to in SAMPLING.items() if params.get(name) is not None}
        return {name: value for name, value in {**own, **given}.items() if value is not None}

    def _completion(
        self, prompt: list[int], sampled: Sampled, text: str, params: JsonObject
    ) -> JsonObject:
        """What was sampled as a chat completion."""
        calls: list[JsonObject] = []
        for match, call in () if params.get(RAW) else list(find_tool_calls(text)):
            function = {"name": call["name"], "arguments": call["arguments"]}
            calls.append({"id": call["call_id"], "type": "function", "function": function})
            text = text.replace(match[0], "", 1)
        message: dict[str, Any] = {"content": text.strip() if calls else text, "tool_calls": calls}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled.token_ids)}
        return {
            "model": self.config.model_name,
            "choices": [{"message": message, "finish_reason": sampled.finish_reason}],
            "usage": {**usage, "total_tokens": sum(usage.values())},
        }


def _check(params: JsonObject) -> None:
    """TaskError for params that no engine follows."""
    for name, reason in chain(find_problems(params), find_unfollowed(params, CANNOT)):
        raise TaskError(f"{name}: {reason}", status=400)
    if params.get("tool_choice") not in (None, "auto", "none"):
        what = "tool_choice: an engine cannot be made to call a tool; use auto or none"
        raise TaskError(what, status=400)
