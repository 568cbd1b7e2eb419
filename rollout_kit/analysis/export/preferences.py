"""Rows of preference formats: one prompt with a better and a worse completion."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ...errors import ConfigError
from ...responses import input_items
from ...store.arms.template import Prompt
from ...store.scope import arm_of_key
from ...types import JsonObject
from .conversation import Conversation, Unfit
from .trainers import tools_as_text


@dataclass(frozen=True, slots=True)
class PairPrompt:
    """Which prompt a pair gets: that of its chosen rollout, that of an arm, or a template's."""

    arm: str | None = None
    template: Prompt | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The choice that `+prompt=` names: `chosen`, `arm:<id>`, or a YAML file."""
        if text == "chosen":
            return cls()
        if text.startswith("arm:"):
            return cls(arm=text.removeprefix("arm:"))
        return cls(template=Prompt.load(Path(text), "prompt"))

    def of(
        self, chosen: Conversation, in_arm: Conversation | None
    ) -> tuple[list[JsonObject], bool]:
        """The prompt, and whether it is raw text. `in_arm`: how the arm asks the task."""
        if self.template is not None:
            try:
                asked = input_items(self.template.apply({}, chosen.row))
            except ValueError as error:
                raise ConfigError(f"task {chosen.rollout.key.task_id}: {error}") from None
            return asked, self.template.completion is not None
        if self.arm is None:
            return chosen.prompt, chosen.is_raw
        if in_arm is None:
            raise Unfit(f"the arm '{self.arm}' has no rollout of its task")
        return in_arm.prompt, in_arm.is_raw


@dataclass(frozen=True, slots=True)
class Pair:
    """Two rollouts of a task. `prompt` is the one that both completions are given to."""

    prompt: list[JsonObject]
    chosen: Conversation
    rejected: Conversation
    chosen_score: float
    rejected_score: float
    rule: str
    is_raw: bool = False
    """Whether the prompt is one text without a chat template."""

    @property
    def margin(self) -> float:
        return self.chosen_score - self.rejected_score

    def identify(self) -> JsonObject:
        """The columns that say what a row is made of."""
        chosen, rejected = self.chosen.rollout.key, self.rejected.rollout.key
        return {
            "chosen_reward": self.chosen_score,
            "rejected_reward": self.rejected_score,
            "margin": self.margin,
            "rule": self.rule,
            "task_id": chosen.task_id,
            "chosen_index": chosen.rollout_index,
            "rejected_index": rejected.rollout_index,
            "chosen_scope": chosen.scope,
            "rejected_scope": rejected.scope,
            "chosen_arm": arm_of_key(chosen),
            "rejected_arm": arm_of_key(rejected),
        }


def trl_dpo(pair: Pair) -> JsonObject:
    return {
        "prompt": pair.prompt,
        "chosen": pair.chosen.completion,
        "rejected": pair.rejected.completion,
        **tools_as_text(pair.chosen),
    }


def trl_reward(pair: Pair) -> JsonObject:
    return {
        "chosen": [*pair.prompt, *pair.chosen.completion],
        "rejected": [*pair.prompt, *pair.rejected.completion],
        **tools_as_text(pair.chosen),
    }


def openrlhf_dpo(pair: Pair) -> JsonObject:
    return {
        "prompt": pair.prompt,
        "chosen": pair.chosen.completion,
        "rejected": pair.rejected.completion,
    }


def axolotl_dpo(pair: Pair) -> JsonObject:
    """One assistant message on each side is all that this loader takes."""
    sides = {"chosen": pair.chosen, "rejected": pair.rejected}
    texts = {name: side.answer["content"] for name, side in sides.items()}
    answers = {name: {"role": "assistant", "content": text} for name, text in texts.items()}
    return {"messages": pair.prompt, **answers}


def nemo_rl_pref(pair: Pair) -> JsonObject:
    sides = (pair.chosen, pair.rejected)
    ranked = [{"rank": rank, "completion": side.completion} for rank, side in enumerate(sides)]
    return {"context": pair.prompt, "completions": ranked}


def text_pair(pair: Pair) -> JsonObject:
    """Plain texts, for those who bring their own loader."""
    return {
        "prompt": pair.prompt[-1]["content"],
        "chosen": pair.chosen.answer["content"],
        "rejected": pair.rejected.answer["content"],
    }
