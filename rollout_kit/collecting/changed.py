"""What an output holds of other settings: refused before anything is sent, or kept apart."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ..errors import OutputError, number_of
from ..store.compact import Keys
from ..store.manifest import Manifest, differences, fingerprint_of, last_input
from ..store.scan import Contents
from ..store.scope import Scope, parse_scope
from ..store.tasks import OwnTasks, read_task_numbers
from ..types import JsonObject

MAX_NAMED = 5


class Made(NamedTuple):
    """How the rollouts of one arm of an agent are made now; `arm` is empty if there are none."""

    agent: str
    arm: str
    settings: JsonObject


def find_scopes(
    made: Sequence[Made], contents: Contents, manifest: Manifest, appends: bool, output: str
) -> dict[tuple[str, str], str]:
    """(agent, arm) → scope, for those whose rollouts on disk were generated with other settings.
    OutputError names them and what differs, unless the run appends."""
    scopes: dict[tuple[str, str], str] = {}
    changed: dict[tuple[str, ...], list[Made]] = {}
    for each in made:
        fingerprint = fingerprint_of(each.settings)
        held = contents.settings.get((each.agent, Scope(arm=each.arm).text), set()) - {fingerprint}
        if not held:
            continue
        scopes[each.agent, each.arm] = Scope(append=fingerprint, arm=each.arm).text
        changes = [
            change
            for other in sorted(held)
            for change in differences(manifest.settings(other) or {}, each.settings)
        ]
        changed.setdefault(tuple(changes), []).append(each)
    if changed and not appends:
        raise OutputError(_refusal(changed, len(made), output))
    return scopes


def _refusal(changed: Mapping[tuple[str, ...], list[Made]], number: int, output: str) -> str:
    lines = []
    for changes, which in changed.items():
        lines.append(
            f"{output} holds rollouts of {_names(which)} that were generated with other settings:"
        )
        lines += [f"  {change}" for change in changes or ["(which ones is not known)"]]
    several = [each for which in changed.values() for each in which]
    has_arms, others = bool(several[0].arm), number - len(several)
    if has_arms and others:
        lines.append(f"The other arms ({others}) are as they were.")
    lines.append("Nothing was sent. Ways on:")
    if has_arms:
        lines.append("  as one more arm:       give it another id  (its earlier rollouts stay)")
    lines += [
        "  another output:        +output_jsonl_fpath=…",
        "  into the same file:    +resume=append  (kept apart under a scope of their own)",
        "  start over:            +resume=fresh   (the old files are moved aside)",
    ]
    return "\n".join(lines)


def _names(which: Sequence[Made]) -> str:
    """`'agent'`, or `arm 'x' of 'agent'`."""
    agents = " and ".join(f"'{agent}'" for agent in dict.fromkeys(each.agent for each in which))
    arms = [f"'{arm}'" for arm in dict.fromkeys(each.arm for each in which) if arm]
    if not arms:
        return agents
    more = f" and {len(arms) - MAX_NAMED} more" if len(arms) > MAX_NAMED else ""
    return f"arm{'s' * (len(arms) > 1)} {', '.join(arms[:MAX_NAMED])}{more} of {agents}"


def find_uncounted(contents: Contents, agents: Sequence[str], arms: Sequence[str]) -> Iterator[str]:
    """A sentence for the rollouts of arms that this run does not have."""
    others: dict[str, int] = {}
    for (agent, scope), number in contents.done.numbers().items():
        arm = parse_scope(scope).arm
        if agent in agents and arm not in (arms or [""]):
            others[arm] = others.get(arm, 0) + number
    if others:
        names = [f"arm '{arm}'" if arm else "no arm" for arm in sorted(others)]
        number = sum(others.values())
        shown = ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
        yield (
            f"{number_of(number, 'rollout')} of {shown} stay in the output and are"
            " not counted: this run does not have them"
        )


def find_left_behind(manifest: Manifest, own: OwnTasks | None, name: str, done: Keys) -> str:
    """A line if tasks of the input before are neither done nor in this input, as after `tail -n
    +101`: with many rollouts in flight, those that were not done lay before the cut."""
    earlier = last_input(manifest.content)
    path = Path(str(earlier.get("path") or ""))
    if own is None or str(path) == name or not path.is_file():
        return ""
    known = {task for _, tasks in done.by_scope() for task in tasks}
    numbers = set(islice(read_task_numbers(path), earlier.get("limit") or None))
    left = sum(number not in known and not own.has(number) for number in numbers)
    if not left or not any(map(own.has, numbers)):
        return ""  # nothing is missing, or it is another input altogether
    return (
        f"warning: {number_of(left, 'task')} of {path} are not done, and not in {name}:"
        f" +input_jsonl_fpath={path} continues with all of them, and repeats nothing"
    )
