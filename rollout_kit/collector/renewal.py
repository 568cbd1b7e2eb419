"""What is settled before stored responses are verified again: which ones, by whom, which are
done, and what the output holds.

Rollouts that the output holds with the verdict of another verifier than the present one, or with
another response than the input's, are taken out of it first, and verified anew; the file is kept as
it was beside it.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from ..config.keys.commands import ReverifyConfig
from ..config.load import Config
from ..errors import OutputError
from ..metrics.aggregate import Metrics
from ..metrics.comparison import Comparison
from ..secrets import mask
from ..store.contents import Contents
from ..store.files import OutputPaths, leave_out, set_aside
from ..store.journal import Journal
from ..store.lines import key_of
from ..store.manifest import Manifest
from ..store.stored import Stored, StoredFile, Survey, response_mark
from ..types import JsonObject, Key
from .plan import number_of
from .prepare import command_line, output_paths
from .verifiers import Verifiers


@dataclass(frozen=True, slots=True)
class Counts:
    """The plan in numbers. `planned` = done + to_verify + to_copy + left_out."""

    planned: int
    done: int
    to_verify: int
    to_copy: int
    left_out: int
    malformed: int
    without_response: int
    older: int
    """Of those that can be verified: with a verdict of another verifier than the present one."""
    current: int
    none: int

    def line(self) -> str:
        """The plan as people read it."""
        kinds = {
            "with an older verifier's verdict": self.older,
            "up to date": self.current,
            "without a verdict": self.none,
        }
        held = ", ".join(f"{number:,} {what}" for what, number in kinds.items() if number)
        parts = [f"Plan: {number_of(self.planned, 'stored rollout')}{f' ({held})' if held else ''}"]
        parts += [f"{self.done:,} done", f"{self.to_verify:,} to verify"]
        parts += [f"{self.to_copy:,} to copy"] if self.to_copy else []
        parts += [f"{self.left_out:,} left out"] if self.left_out else []
        parts += [number_of(self.malformed, "malformed line")] if self.malformed else []
        if self.without_response:
            parts.append(f"{number_of(self.without_response, 'failure')} without a response")
        return " · ".join(parts)


@dataclass(slots=True)
class Renewal:
    """A verification that may begin."""

    command: ReverifyConfig
    stored: StoredFile
    verifiers: Verifiers
    journal: Journal
    manifest: Manifest
    metrics: Metrics
    comparison: Comparison
    command_line: str
    scopes: dict[str, str]
    notes: list[str] = field(default_factory=list)
    stale: set[Key] = field(default_factory=set)
    """Keys that a dry run would take out of the output."""

    def is_done(self, key: Key) -> bool:
        return key in self.journal.contents.done and key not in self.stale

    def is_current(self, key: Key, stored: Stored) -> bool:
        """Whether its verdict is the present verifier's; never of one that does not say which it
        is."""
        verifier = self.verifiers.plans[key.agent].verifier
        return stored.reward is not None and bool(verifier) and stored.verifier == verifier

    def is_copied(self, key: Key) -> bool:
        return self.command.stale_only and self.is_current(key, self.stored.survey.rows[key])

    def is_owed(self, key: Key) -> bool:
        return key.agent in self.verifiers.plans and not self.is_done(key)

    def counts(self) -> Counts:
        tally: Counter[str] = Counter()
        for key, stored in self.stored.survey.rows.items():
            if key.agent not in self.verifiers.plans:
                tally["left_out"] += 1
                continue
            current = self.is_current(key, stored)
            tally["none" if stored.reward is None else "current" if current else "older"] += 1
            copied = current and self.command.stale_only
            tally["done" if self.is_done(key) else "to_copy" if copied else "to_verify"] += 1
        names = ("done", "to_verify", "to_copy", "left_out", "older", "current", "none")
        return Counts(
            planned=len(self.stored.survey.rows),
            malformed=self.stored.survey.num_malformed,
            without_response=self.stored.survey.without_response,
            **{name: tally[name] for name in names},
        )

    def scope_of(self, agent: str) -> str:
        return self.scopes.get(agent, "")


def renewal(
    config: Config, argv: Sequence[str], stored: StoredFile, verifiers: Verifiers
) -> Renewal:
    """OutputError when it must not begin."""
    command = config.command
    assert isinstance(command, ReverifyConfig)
    paths, survey = output_paths(command), stored.survey
    notes, stale = _made_ready(command, paths, survey, verifiers)
    metrics, comparison = Metrics(command.pass_threshold), Comparison()

    def on_row(row: JsonObject) -> None:
        metrics.add(row)
        if (found := survey.rows.get(key_of(row))) is not None:  # type: ignore[arg-type]
            comparison.add(found.reward, row)

    journal = Journal(paths, fsync=command.fsync, on_row=on_row)
    if command.resume == "fresh" and command.dry_run:  # as if the files had been moved
        metrics, journal.contents = Metrics(command.pass_threshold), Contents()
    again = command_line("ng_reverify", argv, config.secrets)
    try:
        manifest = Manifest.load(paths.manifest)
        with suppress(OutputError):  # it only explains settings
            manifest.take_over(Manifest.load(stored.collected.manifest))
        names = {plan.verifier: str(plan.resources) for plan in verifiers.plans.values()}
        manifest.begin(again, mask(config.values, config.secrets), names)
        manifest.content["stored"] = {"path": stored.source, "rollouts": len(survey.rows)}
    except BaseException:
        journal.close(clean=False)
        raise
    return Renewal(
        command=command,
        stored=stored,
        verifiers=verifiers,
        journal=journal,
        manifest=manifest,
        metrics=metrics,
        comparison=comparison,
        command_line=again,
        scopes=_scopes(survey),
        notes=[*notes, *journal.notes],
        stale=stale,
    )


def _made_ready(
    command: ReverifyConfig, paths: OutputPaths, survey: Survey, verifiers: Verifiers
) -> tuple[list[str], set[Key]]:
    """Earlier output moved aside, or freed of older verdicts; what to say of it, and the keys with
    older verdicts that it still holds, as a dry run leaves everything where it is."""
    if command.resume == "fresh":
        if command.dry_run:
            return ["a real run would move the earlier files aside"], set()
        moved = ", ".join(map(str, set_aside(paths)))
        return [f"moved aside: {moved}"] if moved else [], set()

    def is_stale(raw: bytes) -> bool:
        return _stale_key(raw, survey, verifiers) is not None

    stale = _stale_keys(paths.main, survey, verifiers)
    if not stale:
        return [], set()
    what = (
        f"{number_of(len(stale), 'rollout')} of {paths.main} with another verifier's verdict, or"
        " another response: verified anew"
    )
    if command.dry_run:
        return [what], stale
    return [f"{what}; the file as it was is kept in {leave_out(paths, is_stale)}"], set()


def _stale_keys(path: Path, survey: Survey, verifiers: Verifiers) -> set[Key]:
    try:
        with path.open("rb") as stream:
            keys = {_stale_key(raw, survey, verifiers) for raw in stream}
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror}") from None
    return {key for key in keys if key is not None}


def _stale_key(raw: bytes, survey: Survey, verifiers: Verifiers) -> Key | None:
    """The key of an output's line that this run is to verify, where it has another verifier's
    verdict, or another response than the input has now."""
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    key = key_of(row) if isinstance(row, dict) else None
    if key is None or key not in survey.rows or key.agent not in verifiers.plans:
        return None
    held = isinstance(row.get("response"), dict) and (
        row["rollout"].get("verifier"),
        response_mark(row),
    )
    return key if held != (verifiers.plans[key.agent].verifier, survey.rows[key].mark) else None


def _scopes(survey: Survey) -> dict[str, str]:
    """Agent → the scope that the metrics are about: the plain one, if it has rollouts there."""
    scopes: dict[str, str] = {}
    for key in survey.rows:
        scopes[key.agent] = min(key.scope, scopes.get(key.agent, key.scope))
    return scopes
