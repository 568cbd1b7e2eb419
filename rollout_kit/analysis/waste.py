"""What became of the tokens that a training bought: which groups the trainer used, and why others
were of no use.

Each rollout counts once, for one cause. Tokens of attempts that failed are unknown, so a rollout
that never came has dollars only.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..reading import parse_line, read_lines
from ..store.files import OutputPaths
from ..store.rollouts import RolloutFile
from ..store.scope import group_of, key_of_group
from ..types import JsonObject
from .length_bias import LengthBias

ACKED, TRAINED, EQUAL = "acked", "trained on", "zero variance"

UNUSED, EVALUATION, FAILED = "not used", "evaluation", "failed"

CAUSES: Mapping[str, str] = {
    TRAINED: "groups that changed the policy",
    EQUAL: "groups with equal rewards, which have no gradient",
    "stale": "groups whose weights were too old",
    "truncated": "groups with an answer that was cut off",
    "non_finite": "groups with a reward or log-prob that is no number",
    "full": "groups that found no room in the buffer",
    "too_large": "groups that are larger than the buffer",
    "dead": "groups that were handed out too often without an acknowledgement",
    "nacked": "groups that the trainer gave back",
    EVALUATION: "answers to held-out tasks",
    UNUSED: "groups that were not complete, or still waited at the end",
    FAILED: "rollouts without a result: their tokens are unknown",
}
"""Cause → what it means, in the order of the report."""


@dataclass(slots=True)
class Spending:
    """What one cause took."""

    rollouts: int = 0
    output_tokens: int = 0
    usd: float = 0.0

    def add(self, output_tokens: int, usd: float | None) -> None:
        self.rollouts += 1
        self.output_tokens += output_tokens
        self.usd += usd or 0.0


@dataclass(frozen=True, slots=True)
class Waste:
    """`causes` in the order of CAUSES. `num_retried`: rollouts that needed several attempts.
    `lengths`: of the rollouts that the trainer used, and of the others."""

    causes: Mapping[str, Spending]
    num_retried: int
    lengths: LengthBias | None = None

    @property
    def output_tokens(self) -> int:
        return sum(each.output_tokens for each in self.causes.values())

    def share_of(self, cause: str) -> float:
        """The part of all output tokens."""
        total = self.output_tokens
        return self.causes[cause].output_tokens / total if total and cause in self.causes else 0.0


def measure_waste(path: Path, failures: Sequence[JsonObject] = ()) -> Waste | None:
    """What became of the tokens of an output and its evaluations; None if no trainer used it."""
    paths = OutputPaths.of(path)
    reasons = _read_reasons(paths.sidecar("acks.jsonl"))
    if not reasons:
        return None
    found: defaultdict[str, Spending] = defaultdict(Spending)
    groups: defaultdict[str, Spending] = defaultdict(Spending)
    rewards: defaultdict[str, set[float]] = defaultdict(set)
    lengths: defaultdict[str, list[int]] = defaultdict(list)
    num_retried = 0
    for rollout in RolloutFile(path).rollouts():
        info, key = rollout.info, key_of_group(group_of(rollout.key))
        groups[key].add(info.output_tokens, info.cost_usd)
        lengths["kept" if reasons.get(key) == ACKED else ""].append(info.output_tokens)
        num_retried += (info.attempt or 1) > 1
        if rollout.reward is not None:
            rewards[key].add(rollout.reward)
    for key, spent in groups.items():
        cause = reasons.get(key, UNUSED)
        if cause in (ACKED, "zero_variance"):
            cause = TRAINED if cause == ACKED and len(rewards[key]) > 1 else EQUAL
        _join(found[cause], spent)
    for each in sorted((paths.folder / "evaluations").glob("*.jsonl")):
        for rollout in RolloutFile(each).rollouts():
            found[EVALUATION].add(rollout.info.output_tokens, rollout.info.cost_usd)
    for line in failures:
        found[FAILED].add(0, line.get("cost_usd"))
    order = [*CAUSES, *sorted(found.keys() - CAUSES.keys())]
    causes = {cause: found[cause] for cause in order if cause in found}
    return Waste(causes, num_retried, LengthBias.of(lengths["kept"], lengths[""]))


def _read_reasons(path: Path) -> dict[str, str]:
    """Group → why it left the buffer."""
    lines = (parse_line(raw) or {} for _, raw in read_lines(path))
    return {str(line["key"]): str(line.get("reason")) for line in lines if "key" in line}


def _join(one: Spending, other: Spending) -> None:
    one.rollouts += other.rollouts
    one.output_tokens += other.output_tokens
    one.usd += other.usd
