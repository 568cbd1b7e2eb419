"""Steers a run: a request is checked as a whole, then applied as a whole, and each change is kept.

A request that changes nothing, such as one that comes twice, is answered alike and leaves no trace.
"""

import asyncio
import getpass
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any, Literal

from ...config.inputs import parse_only
from ...errors import ConfigError, Dropped, OutputError, suggest
from ...store.lines import describe_error, now_text
from ...store.scope import is_named, name_of
from ...types import Attempt, Failure, JsonObject, Key, Say
from ..ending import Ending
from ..run import Run
from ..schedule import Running
from ..slot import Slot
from .flight import describe_flight, first_described
from .knobs import A_PERSON, Knob, knobs_of
from .snapshot import KnobChange, State

How = Literal["cancel", "requeue", "drop"]

BECOMES = {"cancel": "owed", "requeue": "again", "drop": "dropped"}

ACTIONS = ("cancel", "requeue", "drop", "stop")
"""What a request may hold beside knobs. `cancel` and `requeue` name rollouts as `+only=…` does;
`drop` is true or false, and `stop` is `drain` or `now`."""


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request that was checked."""

    knobs: tuple[tuple[Knob, Any], ...]
    rollouts: dict[Key, How]
    stop: Literal["drain", "now"] | None


class Control:
    """`knobs` may be added to, for what only some runs have."""

    def __init__(self, run: Run, say: Say) -> None:
        self.knobs = knobs_of(run)
        self.changes: list[KnobChange] = []
        self._run, self._say = run, say
        self._set_aside: dict[Key, Attempt] = {}
        """Cancelled rollouts, which are owed."""
        self._has_said_quiet = False
        run.each_second.append(self._say_when_quiet)

    @property
    def state(self) -> State:
        return state_of(self._run)

    async def steer(self, asked: Any, by: str, *, is_dry: bool = False) -> list[KnobChange]:
        """Do what is asked, and return what it changes; ConfigError, and nothing is changed, if any
        part of it is wrong."""
        plan = self._check(asked)
        found = list(self._preview(plan, by))
        if is_dry:
            return found
        for knob, value in plan.knobs:
            knob.set(value)
        withdrawn = [self._withdraw(how, key, by) for key, how in plan.rollouts.items()]
        if plan.stop:
            self._stop(plan.stop)
        self._keep(found)
        if tasks := [task for task in withdrawn if task is not None]:
            await asyncio.wait(tasks)
        return found

    def _check(self, asked: Any) -> CheckedRequest:
        if not isinstance(asked, dict):
            raise ConfigError("a request is a JSON object of knobs and their values")
        for name in asked:
            if name not in (known := [*self.knobs, *ACTIONS]):
                raise ConfigError(
                    f"{name}: there is no such knob{suggest(name, known)};"
                    f" there are {', '.join(known)}; nothing was changed"
                )
        knobs = []
        for name, knob in self.knobs.items():
            if name in asked:
                try:
                    knobs.append((knob, knob.parse(asked[name])))
                except ValueError as error:
                    raise ConfigError(f"{name}: {error}; nothing was changed") from None
        chosen = dict(self._check_rollouts(asked))
        stop = asked.get("stop")
        if stop not in (None, "drain", "now"):
            raise ConfigError(f"stop: expected drain or now, got {stop!r}; nothing was changed")
        self._check_state(asked)
        return CheckedRequest(tuple(knobs), chosen, stop)

    def _check_rollouts(self, asked: JsonObject) -> Iterator[tuple[Key, How]]:
        drops = asked.get("drop", False)
        if not isinstance(drops, bool):
            raise ConfigError(f"drop: expected true or false, got {drops!r}; nothing was changed")
        if drops and not asked.get("cancel"):
            raise ConfigError("drop: name the rollout with cancel=…; nothing was changed")
        hows: dict[str, How] = {"cancel": "drop" if drops else "cancel", "requeue": "requeue"}
        for action, how in hows.items():
            names = asked.get(action) or []
            for name in names if isinstance(names, list) else [names]:
                for key in self._find(action, name):
                    yield key, how

    def _find(self, action: str, name: Any) -> list[Key]:
        """The rollouts of a name that are in flight, or set aside."""
        try:
            only = parse_only(name if isinstance(name, str) else None)
        except ConfigError:
            only = None
        if only is None:
            raise ConfigError(
                f"{action}: name a rollout as <task_id>:<rollout_index>, not {name!r};"
                " nothing was changed"
            )
        known = [*self._in_flight(), *self._set_aside]
        if not (found := [key for key in known if is_named(key, only)]):
            raise ConfigError(
                f"{action}: {name} is not in flight: it has ended, or has not begun;"
                " nothing was changed"
            )
        return found

    def watch(self, name: str, since: int) -> list[JsonObject]:
        """The turns of a rollout in flight from a number on; ConfigError if it is not in
        flight."""
        key = self._find("watch", name)[0]
        slots = self._run.schedule.slots.values()
        slot = next((each for each in slots if each.attempt and each.attempt.key == key), None)
        if slot is None:
            return []
        number = len(slot.turns)
        most = number - first_described(number, since) + 1
        returned = self._run.collection.journal.find_returned(key, most)
        return describe_flight(slot.turns, returned, since)

    def _check_state(self, asked: JsonObject) -> None:
        """While a run stops, only what it waits for can be changed."""
        wrong = [name for name in asked if name not in ("stop", "cancel", "drop")]
        if self._run.ending is not Ending.DONE and wrong:
            raise ConfigError(
                f"{wrong[0]}: the run is stopping, and starts nothing more; nothing was changed"
            )

    def _preview(self, plan: CheckedRequest, by: str) -> Iterator[KnobChange]:
        """What the request changes."""
        change = partial(KnobChange, now_text(), by)
        for knob, value in plan.knobs:
            new = value if not hasattr(value, "spell") else value.spell()
            if (old := knob.read()) != new:
                yield change(knob.name, old, new)
        for key, how in plan.rollouts.items():
            old = "owed" if key in self._set_aside else "in flight"
            if old != (new := BECOMES[how]):
                yield change(name_of(key), old, new)
        run = self._run
        if plan.stop == "now" or (plan.stop and run.ending is Ending.DONE):
            yield change("run", "running" if run.ending is Ending.DONE else "stopping", plan.stop)

    def _keep(self, changes: list[KnobChange]) -> None:
        """Note the changes where they outlast the run."""
        collection = self._run.collection
        for change in changes:
            self.changes.append(change)
            collection.manifest.note_change(asdict(change))
            self._say(f"{change}, by {change.by}", event="steering", **asdict(change))
        if changes and collection.command.only is None:
            try:
                collection.manifest.write()
            except OutputError as error:
                self._say(f"warning: {error}")

    def _stop(self, how: Literal["drain", "now"]) -> None:
        run = self._run
        if run.ending is not Ending.INTERRUPTED:
            run.end.interrupt()
        if how == "now":
            run.end.interrupt()

    def _in_flight(self) -> dict[Key, Running]:
        slots = self._run.schedule.slots
        return {
            slot.attempt.key: task
            for task, slot in slots.items()
            if slot.attempt is not None and not task.done()
        }

    def _withdraw(self, how: How, key: Key, by: str) -> Running | None:
        """Take a rollout back; returns its task, which is being cancelled, if it is in flight."""
        if (attempt := self._set_aside.pop(key, None)) is not None:
            if (outcome := self._settle(how, by, Slot(attempt=attempt))) is not None:
                self._run.schedule.hand_in(outcome)
            return None
        if (task := self._in_flight().get(key)) is None:
            return None
        self._run.schedule.slots[task].withdraw = partial(self._settle, how, by)
        task.cancel()
        return task

    def _settle(self, how: How, by: str, slot: Slot) -> Failure | None:
        """Decide on a rollout that is not in flight any more. A response in hand is kept."""
        attempt = slot.attempt
        assert attempt is not None
        if how == "drop":
            error = Dropped(f"dropped by {by}")
            elapsed_s = perf_counter() - slot.began if slot.began else 0.0
            cost = slot.ledger.billed_usd
            tried = [describe_error(error, elapsed_s)]
            return self._run.runner.failure_of(attempt, error, tried, cost)
        stored = slot.parked.line if slot.parked else attempt.stored
        attempt = attempt._replace(stored=stored, turns=tuple(slot.turns) or attempt.turns)
        if how == "cancel":
            self._set_aside[attempt.key] = attempt
        else:
            self._run.schedule.start_again(attempt)
        return None

    def _say_when_quiet(self) -> None:
        """Say once that nothing is in flight any more while the run is paused."""
        is_quiet = A_PERSON in self._run.schedule.holds and self._run.is_quiet
        if is_quiet and not self._has_said_quiet:
            self._say("paused: nothing is in flight any more", event="quiet")
        self._has_said_quiet = is_quiet


def state_of(run: Run) -> State:
    """That of a run that has not ended."""
    if run.ending is not Ending.DONE:
        return "stopping"
    if A_PERSON not in run.schedule.holds:
        return "running"
    return "paused" if run.is_quiet else "pausing"


def name_user() -> str:
    """The user of this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
