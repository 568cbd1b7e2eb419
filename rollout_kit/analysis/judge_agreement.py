"""How far the judges of stored rollouts agree with each other, and with the labels of people.

A person's verdict on a criterion is a label such as `correct=yes` or `clear=4`, on a rollout or a
task. Judges are compared by what they wrote: yes or no, or a number of the scale.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

from ..config.keys import JudgeAgreementConfig
from ..errors import ConfigError, number_of, suggest
from ..store.filters.expression import filtering
from ..store.outputs import distinct_files_of
from ..store.rollouts import choose
from ..types import JsonObject, Rollout
from .export.source import RolloutSource
from .metrics.kappa import Agreement, Rating, Weights, measure_agreement

VOTE, PEOPLE = "the vote", "the labels"
"""Raters that are no judge."""

WORDS = {
    **dict.fromkeys(("yes", "true", "pass", "better", "first"), 1.0),
    **dict.fromkeys(("no", "false", "fail", "worse", "second"), 0.0),
    "equal": 0.5,
}
"""What a label may say, apart from numbers."""

LABEL = re.compile(r"\s*(?P<name>[^=]+?)\s*=\s*(?P<value>\S+)\s*")

MOST_VALUES = 11
"""A confusion table of more values is not printed. JSON has it."""

HOW = (
    "label rollouts in ng_view with correct=yes or clear=4, for example, or say what your labels"
    " mean with +labels.good=correct=yes"
)

NO_GRADES = "has no grades of a rubric"


class RaterScore(NamedTuple):
    """What one rater says of a criterion. `score` is from 0 to 1 and None for people."""

    value: float
    score: float | None
    is_scale: bool


@dataclass(slots=True)
class Criteria:
    """The ratings of each pair of raters, by criterion."""

    names: dict[str, str]
    """Label → the label that it stands for."""
    pairs: dict[str, dict[tuple[str, str], list[Rating]]] = field(default_factory=dict)
    scales: set[str] = field(default_factory=set)
    """Criteria that are more than yes or no."""
    graded: dict[str, Counter[str]] = field(default_factory=dict)
    """Criterion → rater → rollouts."""
    left_out: Counter[str] = field(default_factory=Counter)
    num_rollouts: int = 0

    def add(self, rollout: Rollout) -> None:
        """Count what judges and people say of a rollout."""
        judges = list(read_grades_of(rollout))
        if any(None in grades.values() for _, grades in judges):
            self.left_out["has a grade without a score"] += 1
            return
        if not judges:
            self.left_out[NO_GRADES] += 1
            return
        self.num_rollouts += 1
        names = {name: None for _, grades in judges for name in grades}
        people = self._read_labels(rollout.labels, names)
        votes = rollout.line.get("rubric_scores") or {}
        for name in names:
            said = {judge: grades[name] for judge, grades in judges if name in grades}
            if len(said) > 1 and (vote := find_vote(votes.get(name), list(said.values()))):
                said[VOTE] = vote
            if name in people:
                said[PEOPLE] = RaterScore(people[name], None, False)
            self._add_pairs(name, said, rollout.key.task_id)

    def _add_pairs(self, name: str, said: Mapping[str, RaterScore], task: str) -> None:
        if any(each.is_scale for each in said.values()):
            self.scales.add(name)
        self.graded.setdefault(name, Counter()).update(list(said))
        pairs = self.pairs.setdefault(name, {})
        for one, other in combinations(said, 2):
            if other != VOTE:  # a judge is a part of the vote
                rating = Rating(said[one].value, said[other].value, task)
                pairs.setdefault((one, other), []).append(rating)

    def _read_labels(self, labels: Sequence[str], names: Mapping[str, Any]) -> dict[str, float]:
        """Criterion → what people say of it. What cannot be read, or contradicts another label, is
        left out, and counted."""
        found: dict[str, float] = {}
        twice: set[str] = set()
        for label in labels:
            match = LABEL.fullmatch(self.names.get(label, label))
            if match is None:
                continue
            value = read_value(match["value"])
            if match["name"] not in names:
                if value is not None:
                    self.left_out[f"label '{label}' names no criterion of the rollout"] += 1
            elif value is None:
                self.left_out[f"label '{label}' says neither yes nor no, and no number"] += 1
            elif found.setdefault(name := match["name"], value) != value:
                twice.add(name)
        for name in twice:
            del found[name]
            self.left_out[f"has contradicting labels of '{name}'"] += 1
        return found


def compare_judges(command: JudgeAgreementConfig) -> JsonObject:
    """The agreement of each pair of raters on each criterion, as JSON; ConfigError if no rollout
    has two raters."""
    paths, again = distinct_files_of(command.inputs)
    for label, meaning in command.labels.items():
        match = LABEL.fullmatch(meaning)
        if match is None or read_value(match["value"]) is None:
            raise ConfigError(
                f"labels: '{label}': expected correct=yes or clear=4, got {meaning!r}"
            )
    source = RolloutSource(paths, tasks=command.input_jsonl_fpath)
    criteria = Criteria(command.labels)
    with filtering(command.where) as keeps:
        for candidate in choose(source.candidates(keeps)):
            criteria.add(candidate.rollout)
    criteria.left_out += source.left_out
    for label, meaning in command.labels.items():
        name = meaning.partition("=")[0].strip()
        if criteria.graded and name not in criteria.graded:
            known = suggest(name, criteria.graded) or f"; there are {', '.join(criteria.graded)}"
            raise ConfigError(f"labels: '{label}': no criterion is called '{name}'{known}")
    found = {
        name: {"scale": name in criteria.scales, "pairs": pairs, "graded": criteria.graded[name]}
        for name in criteria.pairs
        if (pairs := list(_measure_pairs(criteria, name, command.weights)))
    }
    if not found:
        raise ConfigError(_explain_none([str(path) for path in paths], criteria))
    return {
        "files": [str(path) for path in paths],
        "rollouts": criteria.num_rollouts,
        **({"where": command.where} if command.where else {}),
        **({"named_again": [str(path) for path in again]} if again else {}),
        "criteria": found,
        "left_out": dict(criteria.left_out),
    }


def read_grades_of(rollout: Rollout) -> Iterator[tuple[str, dict[str, Any]]]:
    """The judges of a rollout, each with what it says of each criterion; None where that cannot be
    read."""
    evaluations = rollout.line.get("judge_evaluations")
    for each in evaluations if isinstance(evaluations, list) else ():
        grades = each.get("grades") if isinstance(each, dict) else None
        if isinstance(grades, list):
            said = {
                str(one.get("criterion")): _read_grade(one)
                for one in grades
                if isinstance(one, dict)
            }
            yield each.get("judge") or "the judge", said


def _read_grade(grade: Mapping[str, Any]) -> RaterScore | None:
    """What a judge has written, or else its score; None if it has none."""
    score, value = grade.get("score"), grade.get("value")
    if not isinstance(score, int | float) or not isinstance(value, int | float | None):
        return None
    is_scale = not isinstance(value, bool) and (value is not None or score not in (0, 1))
    return RaterScore(float(score if value is None else value), float(score), is_scale)


def find_vote(score: Any, said: Sequence[RaterScore]) -> RaterScore | None:
    """The vote on a criterion, as a value of the judges' scale: its score is known, and two judges
    that differ say how scores and values correspond."""
    if not isinstance(score, int | float):
        return None
    first = said[0]
    other = next((each for each in said if each.score != first.score), None)
    if other is None or first.score is None or other.score is None:
        return first
    slope = (other.value - first.value) / (other.score - first.score)
    value = first.value + slope * (score - first.score)
    return RaterScore(round(value, 9), score, first.is_scale or not float(score).is_integer())


def read_value(text: str) -> float | None:
    """What a label says; None if it is neither a word of WORDS nor a number."""
    if (found := WORDS.get(text.lower())) is not None:
        return found
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _measure_pairs(criteria: Criteria, name: str, weights: Weights) -> Iterator[JsonObject]:
    chosen: Weights = weights if name in criteria.scales else "none"
    for (first, second), ratings in criteria.pairs[name].items():
        yield {"first": first, "second": second, **asdict(measure_agreement(ratings, chosen))}


def _explain_none(paths: Sequence[str], criteria: Criteria) -> str:
    why = "; ".join(f"{number:,} {reason}" for reason, number in criteria.left_out.items())
    names = ", ".join(criteria.graded) or "none"
    return (
        f"{', '.join(paths)}: no rollout is rated twice on a criterion ({names}): {HOW}; several"
        f" judges are the key `judges` of rubric_judge{'; ' if why else ''}{why}"
    )


def format_agreement(found: Mapping[str, Any]) -> str:
    """The agreement for people."""
    lines = [f"{path}: is named twice, and counts once" for path in found.get("named_again", ())]
    lines += [f"{number:,} left out: {reason}" for reason, number in found["left_out"].items()]
    if "where" in found:
        lines.append(f"Rollouts where {found['where']}:")
    for name, criterion in found["criteria"].items():
        lines += ["", name, *_note_missing(criterion["graded"], found["rollouts"])]
        for pair in criterion["pairs"]:
            lines += _format_pair(pair)
    head = f"{number_of(found['rollouts'], 'rollout')} with grades"
    return "\n".join([head, *lines])


def _note_missing(graded: Mapping[str, int], rollouts: int) -> Iterator[str]:
    """Judges that did not grade all rollouts: those that they did may be the hard ones."""
    for judge, number in graded.items():
        if judge not in (VOTE, PEOPLE) and number < rollouts:
            yield f"  {judge} graded only {number:,} of {number_of(rollouts, 'rollout')}"


def _format_pair(pair: Mapping[str, Any]) -> Iterator[str]:
    it = Agreement(**{name: pair[name] for name in Agreement.__slots__})
    low, high = it.share_interval
    over = "" if it.num_clusters == it.num_ratings else f", {number_of(it.num_clusters, 'task')}"
    yield f"  {pair['first']} and {pair['second']}:"
    yield (
        f"    agree on {it.num_equal:,} of {number_of(it.num_ratings, 'rollout')}{over}:"
        f" {it.share:.1%} [{low:.1%}, {high:.1%}]"
    )
    yield f"    {_format_kappa(it)}"
    if len(it.values) > MOST_VALUES:
        yield f"    {len(it.values)} different values: their table is in +json=true"
    elif len(it.values) > 1:
        yield from (f"    {line}" for line in _format_table(pair["first"], pair["second"], it))


def _format_kappa(it: Agreement) -> str:
    name = "kappa" if it.weights == "none" else f"kappa ({it.weights} weights)"
    if it.kappa is None:
        return f"{name} is undefined: both always say the same"
    if it.interval is None:
        return f"{name} {it.kappa:.3f}, without an interval: {_explain_certainty(it)}"
    return f"{name} {it.kappa:.3f} [{it.interval[0]:.3f}, {it.interval[1]:.3f}]"


def _explain_certainty(it: Agreement) -> str:
    """Why the ratings say nothing about the error of kappa."""
    if it.num_clusters < 2:
        return "one task"
    if it.num_equal == it.num_ratings:
        return "they never differ"
    used = [sum(map(any, table)) for table in (it.confusion, zip(*it.confusion, strict=True))]
    return "one of them always says the same" if min(used) == 1 else "they always differ"


def _format_table(first: str, second: str, it: Agreement) -> Iterator[str]:
    """The confusion table: a row for each value of the first rater."""
    is_binary = it.weights == "none" and set(it.values) <= {0.0, 1.0}
    spelled = [("no", "yes")[int(v)] if is_binary else f"{v:g}" for v in it.values]
    cells = [[f"{number:,}" for number in row] for row in it.confusion]
    width = max(map(len, (*spelled, *(cell for row in cells for cell in row)))) + 2
    left = max(map(len, (*spelled, first))) + 2
    yield f"{first:<{left}}{second}"
    yield " " * left + "".join(f"{text:>{width}}" for text in spelled)
    for text, row in zip(spelled, cells, strict=True):
        yield f"{text:<{left}}" + "".join(f"{cell:>{width}}" for cell in row)
