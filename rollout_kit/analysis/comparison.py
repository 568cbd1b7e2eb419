"""Compares files of rollouts task by task, and says in words what may be concluded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from ..config.keys import CompareConfig
from ..errors import ConfigError, number_of
from ..reading import read_object
from ..store.arms.order import ArmOrder
from ..store.files import OutputPaths
from ..store.filters.expression import Filter, filtering
from ..store.outputs import distinct_files_of
from ..store.rollouts import Candidate, choose
from ..store.scope import arm_of_key
from ..types import JsonObject
from .benchmark_table import BenchmarkScore, read_score
from .export.source import RolloutSource
from .metrics.paired import Paired, Side, Sides, compare, correct_holm
from .paper import Measured, write_paper

MAX_SETTINGS = 20
"""Different settings that are listed."""

FEW_TASKS = 6
"""With fewer, the exact tests have no p-value below 0.05, and the t-test rarely."""

MAX_WIDTH = 120
"""Characters of a line about a file; pass@k and maj@k go to lines of their own beyond it."""


@dataclass(slots=True)
class File:
    """One file, or one arm of a file: its rollouts by task, and what they were made with."""

    path: Path
    sides: Sides
    arms: dict[str, "File"] = field(default_factory=dict)
    agents: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    verifiers: set[str] = field(default_factory=set)
    fingerprints: set[str] = field(default_factory=set)
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Why lines of its path were left out → how many."""

    @classmethod
    def create(cls, name: str, path: Path) -> "File":
        return cls(path, Sides.create(name))

    @property
    def name(self) -> str:
        return self.sides.own.name

    def names(self) -> JsonObject:
        """The agents, models, verifiers and fingerprints of its rollouts, as far as known."""
        found = {
            "agent": self.agents,
            "model": self.models,
            "verifier": self.verifiers,
            "settings": self.fingerprints,
        }
        spelled = {name: ", ".join(sorted(each)) for name, each in found.items()}
        return {name: text for name, text in spelled.items() if text}

    def settings(self) -> JsonObject | None:
        """The settings that its rollouts were made with, flat; `{"values": […]}` where they differ
        within the file. None if its manifest does not tell all of them."""
        known = _read_settings(self.path)
        each: list[JsonObject] = []
        for fingerprint in sorted(self.fingerprints):
            if not isinstance(own := known.get(fingerprint), dict):
                return None
            each.append(dict(_flatten(own, "")))
        found: dict[str, list[Any]] = {}
        for name in dict.fromkeys(chain.from_iterable(each)):
            values = found[name] = []
            for own in each:
                values += [own.get(name)] if own.get(name) not in values else []
        return {
            name: values[0] if len(values) == 1 else {"values": values}
            for name, values in found.items()
        }


def read_files(command: CompareConfig) -> tuple[list[File], list[str]]:
    """The files to compare, or the arms of a single one, and the paths that are named again;
    ConfigError if there are not two, or one has no verified rollout."""
    paths, again = distinct_files_of(command.inputs)
    with filtering(command.where) as keeps:
        if len(paths) == 1:
            files = _read_parts(paths[0], keeps, command.input_jsonl_fpath)
        else:
            files = [_read(path, keeps, command.input_jsonl_fpath) for path in paths]
    if len(files) < 2:
        twice = f"{again[0]} is named twice; " if again else ""
        raise ConfigError(
            f"{twice}name two or more files of rollouts, or one with several arms or agents:"
            " ng_compare a.jsonl b.jsonl"
        )
    has_several = any(len(file.agents) > 1 for file in files)
    if not has_several:  # tasks are compared across agents
        for part in (part for file in files for part in (file, *file.arms.values())):
            part.sides.drop_agents()
    for file in files:
        if not any(side.tasks for side in file.sides):
            which = f" for which this holds: {command.where}" if command.where else ""
            others = "".join(f"; left out: {n:,} ({why})" for why, n in file.left_out.items())
            raise ConfigError(f"{file.name}: no verified rollout is in it{which}{others}")
    return files, [str(path) for path in again]


def _read(path: Path, keeps: Filter | None, tasks: Path | None) -> File:
    found, source = File.create(str(path), path), RolloutSource([path], tasks=tasks)
    for candidate in choose(source.candidates(keeps)):
        parts = [found]
        if arm := arm_of_key(candidate.key):
            parts.append(found.arms.setdefault(arm, File.create(arm, path)))
        _add(parts, candidate)
    found.left_out = source.left_out
    return found


def _read_parts(path: Path, keeps: Filter | None, tasks: Path | None) -> list[File]:
    """The arms of a single file, each as a file, in the order of the configuration; its agents if
    it has no arms."""
    arms: dict[str, File] = {}
    agents: dict[str, File] = {}
    source = RolloutSource([path], tasks=tasks)
    for candidate in choose(source.candidates(keeps)):
        arm, agent = arm_of_key(candidate.key), candidate.key.agent
        _add([arms.setdefault(arm, File.create(arm or "(no arm)", path))], candidate)
        if len(arms) < 2:
            _add([agents.setdefault(agent, File.create(agent, path))], candidate)
    for found in (*arms.values(), *agents.values()):
        found.left_out = source.left_out
    if len(arms) < 2:
        return list(agents.values())
    order = ArmOrder()
    made = ((arm, each) for arm, found in arms.items() for each in found.fingerprints)
    order.add({"settings": _read_settings(path)}, made)
    return [arms[arm] for arm in sorted(arms, key=order.place_of)]


def _read_settings(path: Path) -> JsonObject:
    """Fingerprint → settings, in the order of the arms; empty if the file was moved away from its
    manifest."""
    known = read_object(OutputPaths(path).manifest).get("settings")
    return known if isinstance(known, dict) else {}


def _add(parts: Sequence[File], candidate: Candidate) -> None:
    """Count a rollout in its file, and in its arm if it has one."""
    found, key, answer = parts[0], candidate.key, candidate.value("extracted_answer")
    found.agents.add(key.agent)
    found.models.add(candidate.value("model") or "")
    found.verifiers.add(candidate.value("verifier") or "")
    found.fingerprints.add(candidate.value("settings") or "")
    score = candidate.group.reward if candidate.group else None
    for part in parts:
        part.sides.add(key, candidate.reward, score, answer)


def compare_files(command: CompareConfig) -> JsonObject:
    """The comparison as JSON: each file, and the first one with each of the others."""
    if command.labels and command.paper is None:
        raise ConfigError("labels: they name the runs of a paper: add +paper=paper/")
    files, again = read_files(command)
    pairs = []
    scores = {file.path: read_score(file.path) for file in files}
    for first, other in pair_up(files, scores):
        found = _compare_sides(first, other)
        if not found:
            names = f"{first.name} and {other.name}"
            raise ConfigError(f"{names}: they have no verified task in common")
        arms = {
            arm: each
            for arm, part in first.arms.items()
            if arm in other.arms and (each := _compare_sides(part, other.arms[arm]))
        }
        pairs.append(
            {
                "first": first.name,
                "second": other.name,
                **found,
                "settings": _list_differences(first, other),
                **({"arms": arms} if arms else {}),
            }
        )
    described = [_describe(file, command.pass_threshold) for file in files]
    found: JsonObject = {"where": command.where} if command.where else {}
    if again:
        found["named_again"] = again
    if left_out := {str(file.path): dict(file.left_out) for file in files if file.left_out}:
        found["left_out"] = left_out
    if command.paper is not None:
        measured = [
            Measured(file.name, sorted(file.agents), file.sides.own, scores[file.path])
            for file in files
        ]
        folder = command.paper.expanduser()
        found["paper"] = write_paper(folder, measured, command.labels, command.pass_threshold)
    _correct(pairs)
    return {**found, "files": described, "pairs": pairs}


def pair_up(
    files: Sequence[File], scores: Mapping[Path, BenchmarkScore | None]
) -> list[tuple[File, File]]:
    """The first file with each of the others; of several benchmarks, those of each benchmark."""
    by_benchmark: dict[str, list[File]] = {}
    for file in files:
        score = scores[file.path]
        by_benchmark.setdefault(score.name if score else "", []).append(file)
    if len(by_benchmark) == 1 or "" in by_benchmark:
        by_benchmark = {"": list(files)}
    alone = [name for name, each in by_benchmark.items() if len(each) < 2]
    if len(alone) == len(by_benchmark):
        raise ConfigError(f"each benchmark has one file: {', '.join(alone)}; name two of each")
    return [(first, other) for first, *others in by_benchmark.values() for other in others]


def _correct(pairs: Sequence[JsonObject]) -> None:
    """Add the p-values corrected for the number of pairs, if there are several."""
    if len(pairs) > 1:
        corrected = correct_holm([pair.get("p") for pair in pairs])
        for pair, p in zip(pairs, corrected, strict=True):
            pair["p_holm"] = p


def _compare_sides(first: File, other: File) -> JsonObject:
    """The comparison by the individual reward, and in `group_reward` that by the group's; without
    what has no task in common."""
    own, group = map(_compare_rewards, first.sides, other.sides)
    return {**own, **({"group_reward": group} if group else {})}


def _compare_rewards(first: Side, second: Side) -> JsonObject:
    """The comparison as JSON; empty if they have no task in common."""
    try:
        paired = compare(first, second)
    except ValueError:
        return {}
    return {**asdict(paired), "conclusion": conclude(paired)}


def conclude(paired: Paired) -> str:
    """What may be concluded, in one sentence."""
    if paired.p is None:
        return "Nothing can be concluded from a single task."
    if paired.right:
        ones, others = paired.right
        what = f"{ones:,} of {paired.num_tasks:,} against {others:,}"
    else:
        what = f"{paired.means[0]:.4f} against {paired.means[1]:.4f}"
    p = format_p(paired.p)
    if not paired.is_seen and paired.num_tasks < FEW_TASKS:
        tasks = number_of(paired.num_tasks, "task")
        return (
            f"{tasks} cannot show a difference, whatever it is: {what}, {p} ({paired.test})."
            f" Compare at least {FEW_TASKS}."
        )
    if not paired.is_seen:
        return f"No difference can be seen: {what}, {p} ({paired.test})."
    better = "second" if paired.difference > 0 else "first"
    return f"The {better} is better: {what}, {p} ({paired.test})."


def format_p(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"


def format_comparison(found: Mapping[str, Any]) -> str:
    """The comparison for people."""
    chosen = [f"Rollouts where {found['where']}:"] if "where" in found else []
    chosen += [f"{path}: is named twice, and counts once" for path in found.get("named_again", ())]
    left_out = [
        f"{path}: left out: {number:,} ({reason})"
        for path, reasons in found.get("left_out", {}).items()
        for reason, number in reasons.items()
    ]
    files, pairs = _format_files(found["files"]), _format_pairs(found["pairs"])
    written = [f"{path}" for path in found.get("paper", ())]
    return "\n".join([*left_out, *chosen, *files, *pairs, *([""] if written else []), *written])


def _format_files(files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    width = max(len(file["path"]) for file in files)
    for file in files:
        at_k = [
            f"{name}@{k} {value:.3f}"
            for name in ("pass", "maj")
            for k, value in file[f"{name}_at_k"].items()
        ]
        over = f"{number_of(file['rollouts'], 'rollout')} of {number_of(file['tasks'], 'task')}"
        waiting = f" · {file['unverified']:,} unverified" if file["unverified"] else ""
        means = " · ".join(
            f"{name.replace('_', ' ')} {file[name]:.4f}"
            for name in ("reward", "group_reward")
            if file[name] is not None
        )
        head = f"{file['path']:<{width}}  {means} over {over}"
        if len(line := " · ".join([head, *at_k]) + waiting) <= MAX_WIDTH:
            yield line
        else:
            yield head + waiting
            yield from (f"  {' · '.join(at_k[at : at + 6])}" for at in range(0, len(at_k), 6))


def _format_pairs(pairs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for pair in pairs:
        yield ""
        if len(pairs) > 1:
            yield f"{pair['first']} and {pair['second']}:"
        if "difference" in pair:
            yield f"Difference {format_difference(pair)}"
            yield pair["conclusion"]
            if (p := pair.get("p_holm")) is not None:
                yield f"Corrected for {len(pairs)} comparisons (Holm): {format_p(p)}"
        group = pair.get("group_reward", {})
        if group:
            yield f"Group reward: difference {format_difference(group)}"
            yield group["conclusion"]
        for arm, found in pair.get("arms", {}).items():
            for name, each in (("", found), (", group reward", found.get("group_reward", {}))):
                if each.get("conclusion"):
                    yield f"  {arm}{name}: {each['difference']:+.4f}. {each['conclusion']}"
        found = group if "difference" not in pair else pair
        for name, which in (("only_first", "first"), ("only_second", "second")):
            if found[name]:
                yield f"Only in the {which} file: {number_of(found[name], 'task')}, not compared"
        settings = list(pair["settings"].items())
        for name, (one, other) in settings[:MAX_SETTINGS]:
            yield f"  {name}: {_format_value(one)} → {_format_value(other)}"
        if len(settings) > MAX_SETTINGS:
            yield f"  … and {len(settings) - MAX_SETTINGS} other settings"


def _format_value(value: Any) -> str:
    several = value.get("values") if isinstance(value, dict) else None
    return f"{value}" if several is None else f"{len(several)} values"


def format_difference(paired: Mapping[str, Any]) -> str:
    """The difference with its interval, and how many tasks each side wins, in words."""
    low, high = paired["interval"] or (None, None)
    between = "" if low is None else f" [{low:+.4f}, {high:+.4f}]"
    return (
        f"{paired['difference']:+.4f}{between} over"
        f" {number_of(paired['num_tasks'], 'common task')}: the second wins {paired['wins']:,},"
        f" loses {paired['losses']:,}, ties {paired['ties']:,}"
    )


def _describe(file: File, threshold: float) -> JsonObject:
    side, group = file.sides
    return {
        "path": file.name,
        "rollouts": side.num_rollouts or group.num_rollouts,
        "unverified": side.num_unverified,
        "tasks": len(side.tasks or group.tasks),
        "reward": side.mean if side.tasks else None,
        "group_reward": group.mean if group.tasks else None,
        "pass_at_k": side.pass_at_k(threshold),
        "maj_at_k": side.maj_at_k(),
    }


def _list_differences(first: File, other: File) -> dict[str, tuple[Any, Any]]:
    """What the rollouts of two files were made with, where it differs and is known of both."""
    one, two = first.names(), other.names()
    names = [name for name in one if name in two]
    own, others = first.settings(), other.settings()
    if own is not None and others is not None:
        one, two = one | own, two | others
        names = [*(name for name in names if name != "settings"), *{**own, **others}]
    return {
        name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)
    }


def _flatten(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _flatten(child, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
