"""What a trainer reads of rollouts: a typed record of each, and the rows to train on.

A row is one token sequence: turns whose prompts continue each other share one, others begin a new
one. Nothing is computed again: token ids, log-probs and versions are those of the sampler.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..analysis.metrics.advantages import Method, advantages
from ..store.index import seconds_of
from ..store.lines import rollout_of
from ..store.scope import group_of
from ..trajectory import (
    GENERATION,
    STOPPED_BY,
    SampledTurn,
    TokenSequence,
    Versions,
    VersionSpan,
    sequences,
    span_versions,
)
from ..types import JsonObject, Rollout, RolloutInfo


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn. `prompt_ids` is the whole prompt, `finish_reason` is `stop`, `length` or the stop
    condition."""

    prompt_ids: list[int]
    generation_ids: list[int]
    log_probs: list[float]
    temperature: float | None
    finish_reason: str
    versions: Versions | None
    version_spans: Sequence[VersionSpan] = ()
    """Which tokens of the generation have which version, if the turn spans an update and the engine
    told."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One sequence; the lists have an item for each token. `mask` is 1 where the policy sampled the
    token, `versions` is -1 elsewhere and where it is unknown. Of a turn that spans an update it is
    that of each token where the engine told, else the least."""

    token_ids: list[int]
    mask: list[int]
    log_probs: list[float]
    temperatures: list[float]
    versions: list[int]
    advantage: float
    reward: float | None
    group_id: str
    rollout_index: int
    teacher_log_probs: Sequence[float] = ()
    """Those of the teacher, 0 where the policy sampled nothing; empty if the run had none."""


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One rollout. `components` are the numbers that make up or accompany its reward."""

    group_id: str
    task_id: str
    rollout_index: int
    agent: str
    model: str
    finish_reason: str
    reward: float | None
    components: dict[str, float]
    advantage: float
    versions: Versions | None
    turns: list[TurnRecord]
    sequences: list[TokenSequence]
    sampled_s: tuple[float, float] | None = None
    """When its response began and ended, in seconds since 1970; None if its line does not say."""
    oldest: int | None = None
    """Tokens of older versions are not trained on."""

    @property
    def rows(self) -> list[TrainingRow]:
        found = (self._row(each) for each in self.sequences)
        return [row for row in found if self.oldest is None or any(row.mask)]

    def _row(self, sequence: TokenSequence) -> TrainingRow:
        return TrainingRow(
            sequence.token_ids,
            self._mask(sequence),
            sequence.log_probs,
            _list_temperatures(sequence.turns),
            sequence.token_versions,
            self.advantage,
            self.reward,
            self.group_id,
            self.rollout_index,
            sequence.teacher_log_probs,
        )

    def _mask(self, sequence: TokenSequence) -> list[int]:
        oldest = -1 if self.oldest is None else self.oldest
        pairs = zip(sequence.is_generated, sequence.token_versions, strict=True)
        return [int(sampled and not 0 <= version < oldest) for sampled, version in pairs]


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """All rollouts of a task. The advantage of a rollout without a reward is 0."""

    group_id: str
    rollouts: list[RolloutRecord]

    @property
    def versions(self) -> Versions | None:
        return span_versions(each.versions for each in self.rollouts)

    @property
    def rows(self) -> list[TrainingRow]:
        return list(chain.from_iterable(each.rows for each in self.rollouts))


def read_group(
    rollouts: Sequence[Rollout | JsonObject],
    rewards: Sequence[float | None] | None = None,
    method: Method = "grpo",
    oldest: int | None = None,
) -> GroupRecord:
    """The record of a group from its rollouts, or their stored lines. `rewards` are those of the
    group's verification, if it has them. The rows train on no token that weights before version
    `oldest` have sampled. ValueError if log-probs or token ids are incomplete."""
    found = [each if isinstance(each, Rollout) else rollout_of(each) for each in rollouts]
    scores = [each.training_reward for each in found] if rewards is None else list(rewards)
    gained = advantages(scores, method)
    name = group_name(found[0]) if found else ""
    return GroupRecord(
        name,
        [
            _read(rollout, name, score, advantage, oldest)
            for rollout, score, advantage in zip(found, scores, gained, strict=True)
        ],
    )


def compute_ratios(row: TrainingRow, log_probs: Sequence[float]) -> dict[int, list[float]]:
    """The importance ratios of a row's sampled tokens by the version that sampled them, if these
    are the log-probs of all its tokens under the present policy."""
    found: dict[int, list[float]] = {}
    for now, then, version, is_sampled in zip(
        log_probs, row.log_probs, row.versions, row.mask, strict=True
    ):
        if is_sampled:
            found.setdefault(version, []).append(math.exp(now - then))
    return found


def group_name(rollout: Rollout) -> str:
    """What all rollouts of a group share: task, agent, and scope without the arm."""
    return "/".join(filter(None, map(str, group_of(rollout.key))))


def _read(
    rollout: Rollout, name: str, score: float | None, advantage: float, oldest: int | None
) -> RolloutRecord:
    info, output = rollout.info, rollout.response.get("output") or []
    components = dict(rollout.group.components) if rollout.group else {}
    for field in info.scores:
        if isinstance(value := rollout.line.get(field), int | float):
            components.setdefault(field, float(value))
    found = sequences(output)
    if any(len(turn.log_probs) != len(turn.generation) for one in found for turn in one.turns):
        raise ValueError(f"{name}, rollout {info.key.rollout_index}: log-probs are missing")
    return RolloutRecord(
        name,
        info.key.task_id,
        info.key.rollout_index,
        info.key.agent,
        info.model,
        info.finish_reason or "stop",
        score,
        components,
        advantage,
        rollout.versions,
        list(_read_turns(found, output)),
        found,
        _read_span(info),
        oldest,
    )


def _read_span(info: RolloutInfo) -> tuple[float, float] | None:
    began, taken_s = seconds_of(info.started_at), info.duration_s
    if math.isnan(began) or taken_s is None:
        return None
    return began, began + taken_s - (info.verify_s or 0)


def _read_turns(
    found: Iterable[TokenSequence], output: Iterable[Mapping[str, Any]]
) -> Iterable[TurnRecord]:
    reasons = (str(item.get(STOPPED_BY, "stop")) for item in output if GENERATION in item)
    for sequence in found:
        for prompt, turn in sequence.pair_turns():
            yield TurnRecord(
                prompt,
                turn.generation,
                turn.log_probs,
                turn.temperature,
                next(reasons),
                turn.versions,
                turn.spans,
            )


def _list_temperatures(turns: Iterable[SampledTurn]) -> list[float]:
    """That of each sampled token; 1 for those of prompts."""
    return [
        value
        for turn in turns
        for value in (
            *[1.0] * len(turn.added),
            *[1.0 if turn.temperature is None else turn.temperature] * len(turn.generation),
        )
    ]
