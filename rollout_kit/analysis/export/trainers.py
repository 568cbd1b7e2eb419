"""Rows of trainers' formats, made of one conversation, or of one for each task.

Each function returns the row of one format; columns are those that the trainer's loader reads. More
columns, such as the reward, are added by the table of formats.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...config.keys import OtelConfig
from ...formats.foreign import Damaged
from ...formats.inspect_samples import write_sample
from ...formats.trajectories import write_trajectory
from ...store.lines import row_of
from ...store.scope import arm_of_key
from ...trajectory import TokenSequence, sequences
from ...types import JsonObject, Rollout
from ..metrics.advantages import GroupFigures, Method
from ..withheld import WHY, is_withheld
from .conversation import LABELS, MALFORMED, OF_MALFORMED, Conversation, Unfit, text_of
from .dataset_folder import fill_message
from .span_file import to_otlp
from .spans import Span, build_trace


@dataclass(frozen=True, slots=True)
class Context:
    """What a row needs besides its conversation."""

    label_key: str | None = None
    threshold: float = 1.0
    score: float | None = None
    scores: Sequence[float] = ()
    """The scores of all verified rollouts of the group."""
    split: str = "train"
    index: int = 0
    """Position of the row in its file."""
    method: Method | None = None
    """How advantages are computed, if they are asked for."""
    otel: OtelConfig = field(default_factory=OtelConfig)

    def is_right(self) -> bool:
        """Whether the rollout's reward reaches the threshold; Unfit without a reward."""
        if self.score is None:
            raise Unfit("without a reward")
        return self.score >= self.threshold

    def advantage(self) -> float:
        """Of the rollout, over all verified rollouts of its group; Unfit without a reward."""
        if self.score is None:
            raise Unfit("without a reward")
        return GroupFigures.of(self.scores).advantage(self.score, self.method or "grpo")


def tools_as_text(each: Conversation) -> JsonObject:
    """The tool schemas as JSON text: Arrow would give all tools each other's parameters."""
    return {"tools": text_of(each.tools) if each.tools else None}


def trl_sft(each: Conversation, context: Context) -> JsonObject:
    return {"messages": each.messages, **tools_as_text(each)}


def verl_sft(each: Conversation, context: Context) -> JsonObject:
    """Without a field `tools` where there are none: verl takes whatever is in it for tools."""
    return {"messages": each.messages, **(tools_as_text(each) if each.tools else {})}


def trl_prompt_completion(each: Conversation, context: Context) -> JsonObject:
    return {"prompt": each.prompt, "completion": each.completion, **tools_as_text(each)}


def trl_kto(each: Conversation, context: Context) -> JsonObject:
    return {"prompt": each.prompt, "completion": each.completion, "label": context.is_right()}


def trl_grpo(each: Conversation, context: Context) -> JsonObject:
    """The fields of the row become arguments of the reward functions; nested ones as JSON text."""
    own = {
        name: value if isinstance(value, str | int | float | None) else text_of(value)
        for name, value in each.row.items()
    }
    own["task_id"] = each.rollout.key.task_id
    return {**own, "prompt": each.prompt, **tools_as_text(each)}


def trl_rollout(each: Rollout, context: Context) -> Iterator[JsonObject]:
    """One row per token sequence, with the token ids and log-probs as they were sampled."""
    advantage = context.advantage()
    try:
        found = sequences(each.response["output"])
    except (ValueError, KeyError):
        raise Unfit("its token ids are incomplete") from None
    except TypeError:
        raise Unfit("an item of its output is malformed") from None
    if not found:
        raise Unfit("without token ids")
    if any(_lacks_log_probs(sequence) for sequence in found):
        raise Unfit("without a log-prob for each sampled token")
    for sequence in found:
        versions = sequence.versions
        yield {
            "input_ids": sequence.token_ids,
            "completion_mask": [int(sampled) for sampled in sequence.is_generated],
            "old_log_probs": sequence.log_probs,
            "advantage": advantage,
            "model_version": versions.first if versions else None,
            "group_id": each.key.task_id,
        }


def _lacks_log_probs(sequence: TokenSequence) -> bool:
    return any(len(turn.log_probs) != len(turn.generation) for turn in sequence.turns)


def openrlhf_sft(each: Conversation, context: Context) -> JsonObject:
    return {"input": each.prompt, "output": each.completion}


def openrlhf_prompts(each: Conversation, context: Context) -> JsonObject:
    label = text_of(each.label(context.label_key))
    return {"input": each.prompt, "label": label, "datasource": _source(each)}


def verl_rl(each: Conversation, context: Context) -> JsonObject:
    truth = text_of(each.label(context.label_key))
    return {
        "data_source": _source(each),
        "prompt": each.prompt,
        "ability": text_of(each.row.get("ability")) or _source(each),
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": _extra(each, context),
    }


def skyrl_rl(each: Conversation, context: Context) -> JsonObject:
    truth = text_of(each.label(context.label_key))
    return {
        "data_source": _source(each),
        "prompt": each.prompt,
        "env_class": text_of(each.row.get("env_class")) or each.rollout.key.agent,
        "reward_spec": {"method": "rule", "ground_truth": truth},
        "extra_info": _extra(each, context),
    }


def _extra(each: Conversation, context: Context) -> JsonObject:
    return {
        "split": context.split,
        "index": context.index,
        "task_id": each.rollout.key.task_id,
        "row": text_of(each.row),
        **tools_as_text(each),
    }


def _source(each: Conversation) -> str:
    return text_of(each.row.get("data_source")) or each.rollout.key.agent


def slime(each: Conversation, context: Context) -> JsonObject:
    return {
        "input": each.prompt,
        "label": text_of(each.label(context.label_key)),
        "metadata": {"task_id": each.rollout.key.task_id, **each.row},
        "tools": each.tools,
    }


def axolotl_sft(each: Conversation, context: Context) -> JsonObject:
    return {"messages": each.messages, **tools_as_text(each)}


FIGURES = (
    *("finish_reason", "num_turns", "num_tool_calls", "input_tokens", "output_tokens"),
    *("cost_usd", "duration_s"),
)
"""Columns of a table of rollouts that a line's head has under the same names."""


def parquet(each: Conversation, context: Context) -> JsonObject:
    """One row per rollout, for DuckDB and pandas: numbers as columns, the rest as JSON text."""
    rollout, info = each.rollout, each.rollout.info
    return {
        **info.key._asdict(),
        "task_index": info.task_index,
        "reward": rollout.reward,
        "group_reward": rollout.group_reward,
        "model": info.model,
        "verifier": info.verifier,
        **{name: getattr(info, name) for name in FIGURES},
        "text": rollout.text,
        "messages": each.messages,
        **tools_as_text(each),
        "scores": text_of({name: rollout.line.get(name) for name in info.scores}),
        "row": text_of(each.row),
    }


def huggingface(each: Conversation, context: Context) -> JsonObject:
    """A row of a dataset folder, with the columns that its card describes."""
    rollout, info = each.rollout, each.rollout.info
    return {
        "messages": [fill_message(message) for message in each.messages],
        **tools_as_text(each),
        "agent": info.key.agent,
        "model": info.model,
        **{name: getattr(info, name) for name in FIGURES},
        "scope": info.key.scope,
        "scores": text_of({name: rollout.line.get(name) for name in info.scores}),
        "row": text_of(each.row),
        "reward": context.score,
        "task_id": info.key.task_id,
        "rollout_index": info.key.rollout_index,
    }


def ours(each: Rollout, context: Context) -> Iterator[JsonObject]:
    """The rollout as it is stored."""
    yield each.line


def atif(each: Rollout, context: Context) -> Iterator[JsonObject]:
    """The rollout as a trajectory of ATIF 1.8."""
    with _fitting():
        trajectory = write_trajectory(each)
    yield trajectory


def inspect(each: Rollout, context: Context) -> Iterator[JsonObject]:
    """The rollout as a sample of inspect, with the agent and the model of its log."""
    row = row_of(each.line)
    names = LABELS if context.label_key is None else (context.label_key,)
    target = next((row[name] for name in names if name in row), None)
    with _fitting():
        sample = write_sample(each, text_of(target))
    yield {"agent": each.key.agent, "model": sample["output"]["model"], "sample": sample}


@contextmanager
def _fitting() -> Iterator[None]:
    """Unfit for what a format of another tool cannot express."""
    try:
        yield
    except Damaged as error:
        raise Unfit(str(error)) from None
    except (ArithmeticError, ValueError, *OF_MALFORMED):
        raise Unfit(MALFORMED) from None


def otlp(each: Rollout, context: Context) -> Iterator[JsonObject]:
    """The rollout's trace."""
    yield to_otlp(read_trace(each, context.otel), context.otel.service)


def read_trace(each: Rollout, keys: OtelConfig) -> list[Span]:
    """The spans of a rollout; Unfit if its line does not tell when it ran, is malformed, or may not
    be published."""
    if is_withheld(each.line):
        raise Unfit(WHY)
    try:
        return build_trace(each.line, has_content=keys.content)
    except ValueError as error:
        raise Unfit(str(error)) from None
    except OF_MALFORMED:
        raise Unfit(MALFORMED) from None


def identify(rollout: Rollout, score: float | None) -> dict[str, Any]:
    """The columns that say which rollout a row is made of."""
    key, arm = rollout.key, arm_of_key(rollout.key)
    found = {"reward": score, "task_id": key.task_id, "rollout_index": key.rollout_index}
    return {**found, "arm": arm} if arm else found
