"""The grouped view: one line per question with all its answers, written and read back.

`{question, gold_answer, trajectories: [{full_text, answer, reasoning, num_tokens, reward, correct,
…}]}`. `reward` is the group's where the group was scored; `correct` is the individual verdict. A
file of such lines can be read as rollouts, to score, pair or compare them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ...responses import (
    assistant_text,
    content_texts,
    input_items,
    make_response,
    message_item,
    output_items,
    reasoning_item,
    reasoning_texts,
)
from ...store.kinds import key_of
from ...store.lines import BOOKKEEPING, OWN_FIELDS, block_of, identity, rollout_of
from ...store.tasks import task_id_of
from ...types import GroupScore, JsonObject, Key, Rollout
from .conversation import Conversation, is_cut_off, text_of

AGENT = "grouped"
"""Agent of rollouts that were read from a file that names none."""

OF_ANSWERS = frozenset({"full_text", "reward", "individual_reward", "components"})
"""Fields of a trajectory that a line of a rollout has elsewhere."""

RESERVED = (OWN_FIELDS | BOOKKEEPING) - OF_ANSWERS
"""Fields of a trajectory that would be taken for those of a line; they go into `task_fields`."""

TYPES = {"reward": int | float, "individual_reward": int | float, "components": dict}
"""Fields of a trajectory that have other types than text; each may be null."""


def build_group(members: Sequence[Conversation], label_key: str | None, threshold: float) -> Any:
    """One line of the view."""
    first = members[0]
    return {
        "question": first.row.get("question") or _question(first.rollout),
        "gold_answer": text_of(first.label(label_key)),
        "task_id": first.rollout.key.task_id,
        "agent": first.rollout.key.agent,
        "trajectories": [_trajectory(each.rollout, threshold) for each in members],
        **({"group_metrics": group.figures} if (group := first.rollout.group) else {}),
    }


def _question(rollout: Rollout) -> str:
    """The last user message of the prompt."""
    items = input_items(rollout.line.get("responses_create_params") or {})
    asked = [item for item in items if item.get("role") == "user"]
    return "".join(content_texts(asked[-1].get("content"))) if asked else ""


def _trajectory(rollout: Rollout, threshold: float) -> JsonObject:
    line, text = rollout.line, rollout.text
    thoughts = [
        part
        for item in output_items(rollout.response)
        if item.get("type") == "reasoning"
        for part in reasoning_texts(item)
    ]
    found: JsonObject = {
        "full_text": text,
        "answer": text_of(line.get("extracted_answer")),
        "reasoning": "\n".join(thoughts) or text,
        "num_tokens": rollout.info.output_tokens or line.get("num_tokens"),
        "num_words": len(text.split()),
        "reward": rollout.training_reward,
        "correct": None if rollout.reward is None else rollout.reward >= threshold,
        "rollout_index": rollout.key.rollout_index,
    }
    if rollout.group:
        found |= {"individual_reward": rollout.reward, "components": rollout.group.components}
    if is_cut_off(rollout):
        found["finish_reason"] = rollout.info.finish_reason or "length"
    if rollout.key.scope:
        found["scope"] = rollout.key.scope
    arm = rollout.info.arm.id if rollout.info.arm else line.get("arm_name")
    if isinstance(arm, str):
        found["arm_name"] = arm
    return found


def is_group(line: Any) -> bool:
    """Whether a line is one of the view, and no rollout whose row has a field of this name."""
    if not isinstance(line, dict) or not isinstance(line.get("trajectories"), list):
        return False
    return key_of(line) is None


def read_group(line: JsonObject, position: int, numbers: Counter[Key]) -> Iterator[Rollout]:
    """The rollouts of one line, which is the task at this position. Usage, model and times are
    not in the view, so they are unknown. ValueError if a trajectory has no text, or a reward that
    is no number.

    `numbers`: how many rollouts of a task were read, by the key of its first one. Those without an
    index of their own count on from there, as a question may have several lines.
    """
    question, gold = text_of(line.get("question")), text_of(line.get("gold_answer"))
    row: JsonObject = {
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
        "question": question,
        "expected_answer": gold,
    }
    task_id = line.get("task_id") or task_id_of(row)
    for number, given in enumerate(line["trajectories"]):
        if not isinstance(given, dict) or not isinstance(given.get("full_text"), str):
            raise ValueError(f"trajectory {number + 1} has no full_text")
        for name, types in TYPES.items():
            if not isinstance(value := given.get(name), types | None):
                raise ValueError(f"trajectory {number + 1}: {name} cannot be {value!r:.60}")
        agent = str(line.get("agent") or AGENT)
        first = Key(str(task_id), agent, text_of(given.get("scope")), 0)
        index = given.get("rollout_index")
        is_numbered = type(index) is int and index >= 0
        key = first._replace(rollout_index=index if is_numbered else numbers[first])
        numbers[first] += 1
        group = None
        if "individual_reward" in given:
            figures = line.get("group_metrics") or {}
            group = GroupScore(given.get("reward"), given.get("components") or {}, figures)
        own = {name: value for name, value in given.items() if name in RESERVED}
        stored = {**_head(key, position, given), **row, "response": _response(given)}
        yield rollout_of(stored | ({"task_fields": own} if own else {}), group)


def _head(key: Key, position: int, given: JsonObject) -> JsonObject:
    """What the line has in front of its row: identity, reward, and the other fields as scores."""
    scores = {name: value for name, value in given.items() if name not in OF_ANSWERS | RESERVED}
    scores.pop("rollout_index", None)
    scores.pop("scope", None)
    if "answer" in scores:
        scores["extracted_answer"] = scores.pop("answer") or None
    head = identity("rollout", key, position)
    if (reward := given.get("individual_reward", given.get("reward"))) is not None:
        head["reward"] = float(reward)
    reason = scores.pop("finish_reason", None) or "stop"
    return {
        **head,
        **scores,
        "rollout": block_of(key, {"scores": list(scores), "finish_reason": reason}),
    }


def _response(given: JsonObject) -> JsonObject:
    text, thought = given["full_text"], given.get("reasoning")
    output = [message_item(text)]
    if isinstance(thought, str) and thought.strip() not in ("", text.strip()):
        output.insert(0, reasoning_item(thought))
    reason = given.get("finish_reason")
    reason = None if reason == "stop" else reason
    response = make_response("", output, None, incomplete_reason=reason)
    assert assistant_text(output) == text
    return {name: value for name, value in response.items() if name != "usage"}
