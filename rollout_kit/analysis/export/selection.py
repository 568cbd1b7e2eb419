"""Chooses rollouts, and reads the chosen ones group by group.

First the source tells what is needed to choose; a few numbers of each rollout are kept. Then the
chosen rollouts are read, and each group is handed out as soon as its last member was read. Memory
holds open groups only.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ...config.keys import SelectionConfig
from ...errors import ConfigError, suggest
from ...store.filters.expression import filtering
from ...store.outputs import files_of
from ...store.rollouts import BareLine, Candidate
from ...store.scope import Group, arm_of_key, group_of
from ...types import Key, Rollout
from .conversation import digest, is_cut_off, said_by
from .source import RolloutSource

NO_RESPONSE = "without a response"


@dataclass(frozen=True, slots=True)
class Member:
    """What is kept of a rollout while groups are formed.

    `score` is what members are ranked by, `reward` the individual verdict. None: not verified. What
    texts tell is known only if it was asked for.
    """

    key: Key
    reward: float | None
    score: float | None
    num_words: int = 0
    digest: bytes = b""
    is_cut_off: bool = False
    is_empty: bool = False
    place: int = 0
    """Where the source finds the rollout again."""


@dataclass(slots=True)
class Selection:
    """The chosen rollouts of each group, by key; the best first if only the top is asked for."""

    source: RolloutSource
    groups: dict[Group, list[Member]]
    scores: dict[Group, list[float]]
    """The scores of all verified members, chosen or not: the baseline of advantages."""
    num_read: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    of_arm: dict[Group, Member] = field(default_factory=dict)
    """A rollout of each group in the arm that was asked for, chosen or not."""


def select(
    config: SelectionConfig, *, with_texts: bool = False, arm: str | None = None
) -> Selection:
    """Choose rollouts; ConfigError for a filter that is wrong or names an unknown field, and for an
    `arm` that no rollout is of.

    `with_texts`: whether members tell about their texts.
    """
    if not config.inputs:
        raise ConfigError("name one or more files of rollouts")
    source = RolloutSource(files_of(config.inputs), tasks=config.input_jsonl_fpath)
    found = Selection(source, {}, {})
    with_texts = with_texts or config.dedupe
    arms: set[str] = set()
    with filtering(config.where) as keeps:
        for candidate in found.source.candidates(keeps):
            found.num_read += 1
            if arm is not None:
                arms.add(own := arm_of_key(candidate.key))
                if own == arm:
                    member = Member(candidate.key, None, None, place=candidate.place)
                    found.of_arm.setdefault(group_of(candidate.key), member)
            try:
                _take(found, candidate, config, with_texts=with_texts)
            except BareLine:
                found.left_out[NO_RESPONSE] += 1
    found.left_out += found.source.left_out
    if arm is not None and found.num_read and not found.of_arm:
        raise ConfigError(f"no rollout is of the arm '{arm}'{suggest(arm, arms)}")
    if config.reward_key and found.num_read and not found.scores:
        raise ConfigError(f"reward_key={config.reward_key}: no rollout has a number there")
    for group in list(found.groups):
        members = sorted(found.groups[group], key=lambda each: each.key)
        kept = _choose(members, found.scores.get(group, []), config, found.left_out)
        if kept:
            found.groups[group] = kept
        else:
            del found.groups[group]
    return found


def _take(
    found: Selection, candidate: Candidate, config: SelectionConfig, *, with_texts: bool
) -> None:
    """Choose a rollout or leave it out."""
    score = _score_of_candidate(candidate, config.reward_key)
    group = group_of(candidate.key)
    if score is not None:
        found.scores.setdefault(group, []).append(score)
    if reason := _why_not(candidate, score, config):
        found.left_out[reason] += 1
    else:
        member = _member(candidate, score, with_texts=with_texts)
        found.groups.setdefault(group, []).append(member)


def score_of(rollout: Rollout, key: str | None) -> float | None:
    """The reward that trainers get; None without one."""
    if key is None:
        return rollout.training_reward
    if key == "group_reward":
        return rollout.group_reward
    value: Any = rollout.line
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _score_of_candidate(candidate: Candidate, key: str | None) -> float | None:
    """The same, from columns where they have it."""
    if key is None or key == "group_reward":
        group = candidate.group.reward if candidate.group else None
        return group if key or candidate.group else candidate.reward
    value = candidate.value(key)
    return float(value) if isinstance(value, int | float) else score_of(candidate.rollout, key)


def _why_not(candidate: Candidate, score: float | None, config: SelectionConfig) -> str:
    if score is None and (config.min_reward is not None or config.max_reward is not None):
        return "without a reward"
    if score is not None and config.min_reward is not None and score < config.min_reward:
        return "min_reward"
    if score is not None and config.max_reward is not None and score > config.max_reward:
        return "max_reward"
    if not candidate.holds:
        return "where"
    return "drop_truncated" if config.drop_truncated and is_cut_off(candidate.rollout) else ""


def _member(candidate: Candidate, score: float | None, *, with_texts: bool) -> Member:
    if not with_texts:
        return Member(candidate.key, candidate.reward, score, place=candidate.place)
    rollout = candidate.rollout
    said = said_by(rollout)
    return Member(
        candidate.key,
        candidate.reward,
        score,
        len(rollout.text.split()),
        digest(said),
        is_cut_off(rollout),
        not any(any(each[2:]) for each in said if each[0] != "reasoning"),
        candidate.place,
    )


def _choose(
    members: list[Member], scores: Sequence[float], config: SelectionConfig, out: Counter[str]
) -> list[Member]:
    if config.drop_zero_variance and (len(scores) < 2 or min(scores) == max(scores)):
        out["drop_zero_variance"] += len(members)
        return []
    if config.dedupe:
        firsts: dict[bytes, Member] = {}
        for member in members:
            firsts.setdefault(member.digest, member)
        out["dedupe"] += len(members) - len(firsts)
        members = list(firsts.values())
    if config.top_k_per_group is not None:
        ranked = sorted(members, key=lambda each: -(_LEAST if each.score is None else each.score))
        out["top_k_per_group"] += max(0, len(ranked) - config.top_k_per_group)
        members = ranked[: config.top_k_per_group]
    return members


_LEAST = float("-inf")


def read_selected(
    source: RolloutSource, wanted: Mapping[Group, Iterable[Member]]
) -> Iterator[tuple[Group, dict[Key, Rollout]]]:
    """Each group with its wanted rollouts, in the order in which groups are complete; at the end
    those of which a line turns out to have no response, without it."""
    left = {group: len({each.place for each in members}) for group, members in wanted.items()}
    open_groups: dict[Group, dict[Key, Rollout]] = {}
    places = sorted({each.place for members in wanted.values() for each in members})
    for rollout in source.read(places):
        group = group_of(rollout.key)
        held = open_groups.setdefault(group, {})
        held[rollout.key] = rollout
        if len(held) == left[group]:
            yield group, open_groups.pop(group)
            del left[group]
    for group in left:
        yield group, open_groups.get(group, {})


def is_test_of(config: SelectionConfig) -> Callable[[str], bool]:
    """A function that says whether a task, by its id, belongs to the test file."""

    def is_test(task_id: str) -> bool:
        raw = blake2b(f"{config.split_seed}:{task_id}".encode(), digest_size=8).digest()
        return int.from_bytes(raw) < config.test_fraction * 2**64

    return is_test
