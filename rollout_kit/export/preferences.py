"""Rows of preference formats: one prompt with a better and a worse completion."""

from dataclasses import dataclass

from ..store.groups.scope import arm_of_key
from ..types import JsonObject
from .conversation import Conversation
from .trainers import tools_as_text


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
