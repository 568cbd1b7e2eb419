"""`<stem>.d/run.json`: what was run into an output, and with which settings.

Settings decide what is generated. Lines carry their fingerprint; the manifest keeps the settings
behind each fingerprint, so that a difference can be shown in words.
"""

import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import orjson

from .._version import __version__
from ..errors import OutputError
from ..reading import read_object
from ..serving.endpoints.prices import Tariff
from ..types import JsonObject
from .files import write_atomically, write_json
from .lines import now_text

MAX_INPUTS = 200
"""Number of latest inputs that are remembered."""

MAX_CHANGES = 1000
"""Number of latest changes by people that are remembered."""

STEERING = "steering"
"""What people have changed during runs."""

DOUBTS = "not_on_disk_from"
"""Offsets, by file, from which an `fsync` failed; the next run writes those lines again."""


@dataclass(slots=True)
class Manifest:
    path: Path | None = None
    """None for a run without an output."""
    content: JsonObject = field(default_factory=dict)
    is_kept: bool = False
    """Whether the file stays as it is: a run that found nothing to do changes nothing."""
    _was_finished: bool = False

    @classmethod
    def load(cls, path: Path) -> "Manifest":
        """The manifest at `path`, or an empty one; OutputError if it cannot be read."""
        try:
            content = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return cls(path)
        except (OSError, orjson.JSONDecodeError) as error:
            raise OutputError(
                f"{path} cannot be read ({error}): it says with which settings the rollouts beside"
                " it were generated. Remove it to go on without that check's explanations"
            ) from None
        if not isinstance(content, dict):
            content = {}
        known = {"settings": dict, "verifiers": dict, "verifier_parts": dict}
        known |= dict.fromkeys(("inputs", STEERING), list)
        for name, kind in known.items():
            if not isinstance(content.get(name, kind()), kind):
                del content[name]
        return cls(path, content)

    def begin(self, command: str, config: JsonObject, verifiers: Mapping[str, str]) -> None:
        """Note that this process runs now."""
        has_doubts = self.content.pop(DOUBTS, None)  # the journal has written those lines again
        self._was_finished = self.content.get("exit_status") in (0, 2) and not has_doubts
        self.content |= {
            "command": command,
            "pid": os.getpid(),
            "started_at": now_text(),
            "finished_at": None,
            "versions": versions(),
            "config": config,
            "verifiers": {**self.content.get("verifiers", {}), **verifiers},
        }

    def find_verified_input(self) -> str:
        """The file that was last verified into this output; empty if none was."""
        stored = self.content.get("stored")
        path = stored.get("path") if isinstance(stored, dict) else None
        return path if isinstance(path, str) else ""

    def explain_from(self, collected: Path) -> None:
        """Take over the settings and inputs that another manifest explains, if it is readable."""
        with suppress(OutputError):
            known = Manifest.load(collected).content
            for name, empty in (("settings", {}), ("inputs", [])):
                self.content.setdefault(name, known.get(name, empty))

    @property
    def batch_key(self) -> str:
        """What names this output to the servers that gather its requests into batches. It is drawn
        once, so that a continued run finds the batches of the earlier ones."""
        known = self.content.get("batch_key")
        if not isinstance(known, str) or not known:
            known = self.content["batch_key"] = token_hex(8)
        return known

    def know(self, fingerprint: str, settings: JsonObject) -> None:
        self.content.setdefault("settings", {})[fingerprint] = settings

    def know_verifier(self, about: JsonObject) -> None:
        """Keep the code and the libraries behind the fingerprint of a verifier that describes
        itself so."""
        if parts := about.get("verifier_parts"):
            self.content.setdefault("verifier_parts", {})[about["verifier"]] = parts

    def note_prices(self, tariffs: Mapping[str, Tariff | None]) -> None:
        """Note the prices of each agent's model: the price table changes over time."""
        self.content["prices"] = {
            agent: tariff.to_json()
            for agent, tariff in tariffs.items()
            if tariff and not tariff.is_free
        }

    def settings(self, fingerprint: str) -> JsonObject | None:
        return self.content.get("settings", {}).get(fingerprint)

    def earlier_inputs(self, current: Mapping[str, Any]) -> list[JsonObject]:
        """Inputs of earlier runs that are not the current one."""
        inputs = [each for each in self.content.get("inputs", []) if isinstance(each, dict)]
        return [each for each in inputs if "path" in each and not _same_input(each, current)]

    def note_input(self, current: JsonObject) -> None:
        """Remember an input with its latest figures."""
        self.content["inputs"] = [*self.earlier_inputs(current), current][-MAX_INPUTS:]

    def note_change(self, change: JsonObject) -> None:
        """Remember what a person has changed during a run."""
        self.content[STEERING] = [*self.content.get(STEERING, []), change][-MAX_CHANGES:]

    def finish(self, counts: Mapping[str, int], exit_status: int) -> None:
        self.content |= {
            "finished_at": now_text(),
            "pid": None,
            "counts": dict(counts),
            "exit_status": exit_status,
        }

    def keep_if_finished(self) -> None:
        """Leave the file as the last run wrote it, as this one has nothing to do."""
        self.is_kept = self._was_finished

    def write(self) -> None:
        if self.path and not self.is_kept:
            write_json(self.path, self.content)


def _same_input(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one.get(name) == other.get(name) for name in ("path", "limit", "agent_name"))


def fingerprint_of(settings: Mapping[str, Any]) -> str:
    canonical = orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(canonical, digest_size=6).hexdigest()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`temperature: 0.2 → 0.7` for each setting that differs, by dotted name."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    return [
        f"{name}: {_shown(before, name)} → {_shown(after, name)}"
        for name in sorted({*before, *after})
        if before.get(name, _NOTHING) != after.get(name, _NOTHING)
    ]


_NOTHING = object()


def _shown(values: Mapping[str, Any], name: str) -> str:
    return orjson.dumps(values[name]).decode() if name in values else "(not set)"


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def versions() -> dict[str, str]:
    return {
        "rollout_kit": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }


def last_input(manifest: JsonObject) -> JsonObject:
    """The latest input of a run; empty if its manifest has none."""
    inputs = manifest.get("inputs")
    last = inputs[-1] if isinstance(inputs, list) and inputs else None
    return last if isinstance(last, dict) else {}


def note_doubts(path: Path, doubts: JsonObject) -> None:
    """Note from where on each file may not be on disk; this note itself may not be either."""
    with suppress(OutputError):
        raw = orjson.dumps({**read_object(path), DOUBTS: doubts})
        write_atomically(path, raw, is_forced=False)


def read_doubts(manifest: Path) -> JsonObject:
    """File name → offset from which an earlier run could not force it to disk."""
    found = read_object(manifest).get(DOUBTS)
    return found if isinstance(found, dict) else {}
