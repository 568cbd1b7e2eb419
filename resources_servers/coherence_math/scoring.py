"""Rewards for a group of solutions to one problem: correctness, and how well the group agrees.

Pure text: numbers, words and sets. A profile is one version of the rules; `v1` and `v3` repeat a
published pipeline digit for digit, with its weaknesses, and `strict` is the same idea without them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from statistics import fmean, pvariance
from typing import Literal, NamedTuple

ProfileName = Literal["v1", "v3", "strict"]

UNANIMOUS = 0.9
"""There is a bonus for a right answer if more than this share of the pairs agrees."""

OPEN = 0.5
"""The value of a part that cannot be computed."""

CANONICAL = frozenset({"A", "A_prime"})
"""Tags `probe` of the members that show the canonical solution."""

DOUBTING = "CF1"
"""Tag `probe` of the member that distrusts its first idea."""


class Weights(NamedTuple):
    """Of the parts of a member's reward. Each word beyond `free_words` costs `length_penalty`."""

    correct: float = 1.0
    coherence: float = 0.5
    quality: float = 0.3
    bonus: float = 0.2
    length_penalty: float = 0.001
    free_words: int = 512


PUBLISHED = Weights()


class Member(NamedTuple):
    """One solution; `probe` is its arm's tag of that name, `length` its tokens if known."""

    text: str
    probe: str = ""
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """One version of the rules: the marker of answers, and the weights of a group's agreement."""

    markers: tuple[str, ...]
    number: re.Pattern[str]
    end: float
    path: float
    robust: float
    has_quality: bool
    compares_words: bool


V1 = Profile(("####",), re.compile(r"-?\d+\.?\d*"), 0.4, 0.3, 0.3, False, False)
V3 = Profile(("Answer:", "####"), re.compile(r"-?[\d,]+\.?\d*"), 0.6, 0.4, 0.0, True, True)
STRICT = Profile((), re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?"), 0.6, 0.4, 0.0, True, True)

PROFILES: dict[str, Profile] = {"v1": V1, "v3": V3, "strict": STRICT}

MARKER = re.compile(r"answer\W*:|####|\\boxed\{", re.IGNORECASE)
"""What introduces the final answer in the strict profile."""


@dataclass(frozen=True, slots=True)
class GroupScore:
    """`rewards` and `components` in the order of the members; `group` are figures of the group."""

    rewards: list[float]
    components: list[dict[str, float]]
    group: dict[str, float]


def extract(text: str, profile: ProfileName) -> str | None:
    """The final answer as it was written; None if a strict reader finds none."""
    rules = PROFILES[profile]
    if profile == "strict":
        return _extract_strictly(text, rules)
    for marker in rules.markers:
        if marker in text:
            after = text.rpartition(marker)[2]
            if found := rules.number.search(after):
                return found[0]
    numbers = rules.number.findall(text)
    return numbers[-1] if numbers else text.strip()


def _extract_strictly(text: str, rules: Profile) -> str | None:
    """The last number of the line behind the last marker, else the last number of all."""
    marks = list(MARKER.finditer(text))
    if marks:
        line = text[marks[-1].end() :].strip().partition("\n")[0]
        line = line.partition("}")[0] if marks[-1][0].startswith("\\") else line
        if found := _numbers(line, rules):
            return found[-1]
    found = _numbers(text, rules)
    return found[-1] if found else None


def _numbers(text: str, rules: Profile) -> list[str]:
    """The numbers of a text; a minus directly behind a digit or letter is a subtraction."""
    return [
        found[0].lstrip("-") if found.start() and text[found.start() - 1].isalnum() else found[0]
        for found in rules.number.finditer(text)
    ]


def key_of(text: str, profile: ProfileName) -> str:
    """The answer in the form in which answers are compared; empty if there is none."""
    answer = extract(text, profile)
    if answer is None:
        return ""
    if profile == "strict":
        try:
            return str(Fraction(answer.replace(",", "")))
        except (ValueError, ZeroDivisionError):
            return ""
    plain = answer.strip().lower().replace(",", "")
    if "." in plain:
        try:
            number = float(plain)
        except ValueError:
            return plain
        if number.is_integer():
            return str(int(number))
    return plain


def is_correct(key: str, gold: str) -> bool:
    return bool(gold) and key == gold


def score(
    members: Sequence[Member],
    gold: str,
    profile: ProfileName = "strict",
    weights: Weights = PUBLISHED,
) -> GroupScore:
    """The rewards of a group of at least one member; `gold` is the text of the right answer."""
    rules = PROFILES[profile]
    keys = [key_of(member.text, profile) for member in members]
    right = [is_correct(key, key_of(gold, profile)) for key in keys]
    lengths = [_length(member, profile) for member in members]
    votes = [extract(each.text, profile) or "" for each in members] if profile == "v1" else keys
    end, path = _agreement(votes, profile), _likeness(members, lengths, profile)
    robust = _robustness(members, keys, profile)
    coherence = rules.end * end + rules.path * path + rules.robust * robust
    components = []
    for place, member in enumerate(members):
        parts = {
            "correct": weights.correct * right[place],
            "coherence": weights.coherence * _share(place, keys, coherence, profile),
            "bonus": weights.bonus * (right[place] and end > UNANIMOUS),
            "length_penalty": -weights.length_penalty * max(0, lengths[place] - weights.free_words),
        }
        if rules.has_quality:
            quality = _quality(place, member, members, right, lengths, profile)
            parts["quality"] = weights.quality * quality
        components.append({name: float(value) for name, value in parts.items()})
    figures = {"s_end": end, "s_path": path, "s_cf": robust, "s_wm": coherence}
    return GroupScore([sum(parts.values()) for parts in components], components, figures)


def _length(member: Member, profile: ProfileName) -> int:
    words = len(member.text.split())
    return member.length if profile == "strict" and member.length is not None else words


def _agreement(keys: Sequence[str], profile: ProfileName) -> float:
    """Share of the pairs with equal answers. A strict vote needs an answer."""
    number = len(keys)
    if number < 2:
        return float(number)
    counts = Counter(key for key in keys if key or profile != "strict")
    same = sum(count * (count - 1) for count in counts.values())
    return same / (number * (number - 1))


def _share(place: int, keys: Sequence[str], coherence: float, profile: ProfileName) -> float:
    """The group's coherence; in the strict profile times the share of others that agree."""
    if profile != "strict" or len(keys) < 2:
        return coherence
    others = [key for other, key in enumerate(keys) if other != place]
    agreeing = sum(bool(keys[place]) and key == keys[place] for key in others)
    return coherence * agreeing / len(others)


def _robustness(members: Sequence[Member], keys: Sequence[str], profile: ProfileName) -> float:
    """v3: how large the most common answer is. Strict: whether the doubting member agrees with the
    canonical ones."""
    if profile == "v1":
        return OPEN
    if profile == "strict":
        doubting = [key for member, key in zip(members, keys, strict=True) if _doubts(member)]
        canonical = [key for member, key in zip(members, keys, strict=True) if _leads(member)]
        pairs = [bool(one) and one == other for one in doubting for other in canonical]
        return fmean(map(float, pairs)) if pairs else OPEN
    distinct = {key for key in keys if key}
    if not distinct:
        return OPEN
    if len(distinct) == 1:
        return 1.0
    return 0.0 if len(distinct) == len(keys) else max(Counter(keys).values()) / len(keys)


def _likeness(members: Sequence[Member], lengths: Sequence[int], profile: ProfileName) -> float:
    """How alike the solutions are: their lengths, and but in v1 their words."""
    mean = fmean(lengths) if lengths else 0.0
    same_length = 1 / (1 + pvariance(lengths) / (mean + 1e-6)) if mean > 0 else 0.0
    if not PROFILES[profile].compares_words or len(members) < 2:
        return same_length
    compared = members
    if profile == "strict" and len(leading := [each for each in members if _leads(each)]) > 1:
        compared = leading
    words = [set(member.text.lower().split()) for member in compared]
    alike = [_jaccard(one, other) for one, other in combinations(words, 2) if one | other]
    if not alike:
        return same_length
    return min(1.0, max(0.0, 0.4 * same_length + 0.6 * fmean(alike)))


def _quality(
    place: int,
    member: Member,
    members: Sequence[Member],
    right: Sequence[bool],
    lengths: Sequence[int],
    profile: ProfileName,
) -> float:
    """Of a right solution: how short it is, and how close to a canonical one."""
    if not right[place]:
        return 0.0
    among = [length for length, is_right in zip(lengths, right, strict=True) if is_right]
    spread = max(among) - min(among)
    short = 1 - (lengths[place] - min(among)) / spread if spread else OPEN
    canonical = [
        other
        for number, other in enumerate(members)
        if right[number] and _leads(other) and not (profile == "strict" and number == place)
    ]
    if not canonical:
        return short
    words = set(member.text.lower().split())
    if not words:
        return 0.5 * short
    sets = (set(other.text.lower().split()) for other in canonical)
    close = max(_jaccard(words, other) if other else OPEN for other in sets)
    return min(1.0, max(0.0, 0.4 * short + 0.6 * close))


def _jaccard(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other)


def _leads(member: Member) -> bool:
    return member.probe in CANONICAL


def _doubts(member: Member) -> bool:
    return member.probe == DOUBTING
