"""Preference pairs: which two rollouts of a task make one, by rules.

Rules see a few numbers of each rollout, never its text. Ties make no pair.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from ...config.keys import PairRule, PairsConfig
from ...errors import ConfigError
from ...store.arms.template import read_yaml
from ...store.scope import Group
from .conversation import digest
from .selection import Member, Selection

EXAMPLE = "rules: [{type: correctness, max_per_task: 4}]"


class Two(NamedTuple):
    """A pair before its rollouts are read."""

    chosen: Member
    rejected: Member
    rule: str

    @property
    def margin(self) -> float:
        return _score(self.chosen) - _score(self.rejected)


@dataclass(slots=True)
class PairPlan:
    """The pairs of each group, and why others are none."""

    pairs: dict[Group, list[Two]]
    skipped: Counter[str] = field(default_factory=Counter)


def plan_pairs(selection: Selection, config: PairsConfig) -> PairPlan:
    """Apply the rules to each group; `selection.left_out` gets the members that no rule sees."""
    rules, found = read_rules(config), PairPlan({})
    for group, members in selection.groups.items():
        usable = [each for each in members if not _why_not(each, config, selection.left_out)]
        if len(usable) < 2:
            found.skipped["tasks with fewer than two usable rollouts"] += 1
            continue
        pairs = [pair for rule in rules for pair in _apply(rule, usable, config, found.skipped)]
        if config.dedupe_pairs:
            firsts: dict[tuple[bytes, bytes], Two] = {}
            for pair in pairs:
                firsts.setdefault((pair.chosen.digest, pair.rejected.digest), pair)
            found.skipped["pairs that read like another"] += len(pairs) - len(firsts)
            pairs = list(firsts.values())
        pairs = _cap(pairs, config.max_per_task, found.skipped, "pairs above max_per_task")
        if pairs:
            found.pairs[group] = pairs
        else:
            found.skipped["tasks without a pair"] += 1
    if config.max_pairs is not None:
        _cap_all(found, config.max_pairs)
    return found


def read_rules(config: PairsConfig) -> Sequence[PairRule]:
    """The rules of the command line or of its file; ConfigError if the file is wrong."""
    path = config.rules_fpath
    if path is None:
        return config.rules or [PairRule(type="best_worst")]
    if config.rules:
        raise ConfigError("give rules or rules_fpath, not both")
    content = read_yaml(path.expanduser(), "rules_fpath")
    rules = content.get("rules") if isinstance(content, dict) else content
    if not isinstance(rules, list):
        raise ConfigError(f"rules_fpath {path}: expected a list of rules, such as {EXAMPLE}")
    try:
        return TypeAdapter(list[PairRule]).validate_python(rules)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"rules_fpath {path}: rules.{where}: {first['msg']}") from None


def _why_not(member: Member, config: PairsConfig, out: Counter[str]) -> str:
    reason = ""
    if member.score is None:
        reason = "without a reward"
    elif config.drop_empty and member.is_empty:
        reason = "drop_empty"
    if reason:
        out[reason] += 1
    return reason


def _apply(
    rule: PairRule, members: Sequence[Member], config: PairsConfig, skipped: Counter[str]
) -> list[Two]:
    found = []
    for chosen, rejected in RULES[rule.type](members, rule, config.pass_threshold):
        if config.drop_identical and chosen.digest == rejected.digest:
            skipped["pairs of identical responses"] += 1
        elif not _is_apart(chosen, rejected, rule):
            skipped["pairs without a larger margin"] += 1
        else:
            found.append(Two(chosen, rejected, rule.type))
    return _cap(found, rule.max_per_task, skipped, "pairs above a rule's max_per_task")


def _is_apart(chosen: Member, rejected: Member, rule: PairRule) -> bool:
    """Whether the rewards differ enough. Right against wrong needs no margin of its own."""
    if rule.min_margin is None and rule.type == "correctness":
        return True
    return _score(chosen) - _score(rejected) > (rule.min_margin or 0.0)


Pairs = Iterator[tuple[Member, Member]]


def _correctness(members: Sequence[Member], rule: PairRule, threshold: float) -> Pairs:
    """Each right one with each wrong one, by the individual verdicts."""
    right = [each for each in members if _is_right(each, threshold)]
    wrong = [each for each in members if each.reward is not None and each.reward < threshold]
    yield from product(right, wrong)


def _coherence(members: Sequence[Member], rule: PairRule, threshold: float) -> Pairs:
    """The best and the worst of the right ones, by score."""
    right = _rank([each for each in members if _is_right(each, threshold)])
    if len(right) > 1:
        yield right[0], right[-1]


def _top_bottom(members: Sequence[Member], rule: PairRule, threshold: float) -> Pairs:
    """Each of the best k with each of the worst k."""
    ranked = _rank(members)
    k = min(rule.k, len(ranked) // 2)
    yield from product(ranked[:k], ranked[-k:])


def _length_matched(members: Sequence[Member], rule: PairRule, threshold: float) -> Pairs:
    """Pairs of texts of about equal length, the closest first; each rollout is in one pair."""
    ratios = []
    for chosen, rejected in product(members, members):
        if _is_apart(chosen, rejected, rule):
            short, long = sorted((chosen.num_words, rejected.num_words))
            if long <= rule.max_length_ratio * short:
                ratios.append((long / max(short, 1), len(ratios), chosen, rejected))
    used: set[int] = set()
    for _, _, chosen, rejected in sorted(ratios, key=lambda each: each[:2]):
        if not used & {id(chosen), id(rejected)}:
            used |= {id(chosen), id(rejected)}
            yield chosen, rejected


RULES: Mapping[str, Callable[[Sequence[Member], PairRule, float], Pairs]] = {
    "correctness": _correctness,
    "coherence": _coherence,
    "best_worst": lambda members, rule, threshold: _top_bottom(
        members, rule.model_copy(update={"k": 1}), threshold
    ),
    "top_bottom": _top_bottom,
    "length_matched": _length_matched,
}


def _score(member: Member) -> float:
    assert member.score is not None
    return member.score


def _is_right(member: Member, threshold: float) -> bool:
    return member.reward is not None and member.reward >= threshold


def _rank(members: Sequence[Member]) -> list[Member]:
    """Best first; equal ones stay in order."""
    return sorted(members, key=_score, reverse=True)


def _draw(pair: Two) -> bytes:
    """A number for choosing among pairs that does not depend on their order."""
    return digest((pair.chosen.key, pair.rejected.key, pair.rule))


def _cap(pairs: list[Two], most: int | None, skipped: Counter[str], reason: str) -> list[Two]:
    if most is None or len(pairs) <= most:
        return pairs
    skipped[reason] += len(pairs) - most
    kept = set(sorted(range(len(pairs)), key=lambda at: _draw(pairs[at]))[:most])
    return [pair for at, pair in enumerate(pairs) if at in kept]


def _cap_all(found: PairPlan, most: int) -> None:
    """Keep this many pairs: one of each task first, then a second, …"""
    total = sum(map(len, found.pairs.values()))
    if total <= most:
        return
    found.skipped["pairs above max_pairs"] += total - most
    turns = [
        (turn, _draw(pair), group, pair)
        for group, pairs in found.pairs.items()
        for turn, pair in enumerate(sorted(pairs, key=_draw))
    ]
    kept = {(group, pair) for *_, group, pair in sorted(turns, key=lambda each: each[:2])[:most]}
    found.pairs = {
        group: left
        for group, pairs in found.pairs.items()
        if (left := [pair for pair in pairs if (group, pair) in kept])
    }
