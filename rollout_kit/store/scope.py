"""The `scope` of a key: which part of a job a rollout belongs to. Only this module builds and reads
its text.

A scope is a list of components, sorted by name: `arm=direct_0,epoch=3`. It is empty if none
applies. The component `append`, if it is the only one, is written without its name, as in the
outputs of earlier versions.

The arm is a component, so that an output can get more arms later, and a changed one is refused
alone.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from ..types import Key

ARM_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""What an arm may be called: its id is a part of the scope, of file names and of filters."""

NUMBER = re.compile(r"([0-9]{1,18})")


class Scope(NamedTuple):
    """The components of a scope. Empty or None: it does not apply."""

    append: str = ""
    """Fingerprint of the settings, of rollouts that `+resume=append` keeps apart."""
    arm: str = ""
    epoch: int | None = None

    @property
    def text(self) -> str:
        parts = {name: value for name, value in self._asdict().items() if value not in ("", None)}
        if parts.keys() == {"append"}:
            return self.append
        return ",".join(f"{name}={parts[name]}" for name in sorted(parts))


@lru_cache(maxsize=10_000)
def parse_scope(text: str) -> Scope:
    """The components of a scope. A text of another form counts as the name of an `append`."""
    pairs = (each.partition("=") for each in text.split(","))
    parts = {name: value for name, _, value in pairs}
    epoch = parts.get("epoch", "")
    number = int(epoch) if epoch.isdecimal() and epoch.isascii() else None
    found = Scope(parts.get("append", ""), parts.get("arm", ""), number)
    return found if found.text == text else Scope(append=text)


def split_numbers(name: str) -> list[str | int]:
    """The texts and numbers of a name, to sort `arm_2` before `arm_10`."""
    parts: list[str | int] = list(NUMBER.split(name))
    parts[1::2] = map(int, parts[1::2])
    return parts


def arm_of_key(key: Key) -> str:
    """The id of a rollout's arm; empty without one."""
    return parse_scope(key.scope).arm if key.scope else ""


@lru_cache(maxsize=10_000)
def without_arm(scope: str) -> str:
    """The scope that all arms share."""
    return parse_scope(scope)._replace(arm="").text


class Group(NamedTuple):
    """All rollouts of a task by one agent: every repeat of every arm. So the arms are judged,
    compared and exported together."""

    task_id: str
    agent: str
    scope: str


def group_of(key: Key) -> Group:
    return Group(key.task_id, key.agent, without_arm(key.scope) if key.scope else "")


def is_named(key: Key, only: tuple[str, int] | None) -> bool:
    """Whether `only` names this rollout, as a pair of its task id and its index. In front of the
    index may be an arm, `task_id:arm`; else every arm is meant."""
    if only is None:
        return True
    name, index = only
    return index == key.rollout_index and name in (
        key.task_id,
        f"{key.task_id}:{arm_of_key(key)}",
    )


def name_of(key: Key) -> str:
    """What `only` names the rollout by: `task_id:rollout_index`, or `task_id:arm:rollout_index`."""
    return ":".join(filter(None, (key.task_id, arm_of_key(key), str(key.rollout_index))))


def repeat_command(command: str, key: Key) -> str:
    """The command that makes a rollout again; its last word alone if no command is known."""
    only = f"only={name_of(key)}"
    return f"{command} +{only}" if command else only


def key_of_group(group: Group) -> str:
    """The key of a group in a buffer."""
    return ":".join(filter(None, (group.task_id, group.agent, group.scope)))
