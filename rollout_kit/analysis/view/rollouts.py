"""One rollout, and the group of a task, as the pages show them."""

from typing import Any

import orjson

from ...errors import ConfigError
from ...reading import parse_line
from ...responses import has_provider_data, without_provider_data
from ...store.filters.masks import rows_of_task, status_of
from ...store.index import LineChanged
from ...store.labels import Labelled
from ...store.lines import rollout_of
from ...types import JsonObject
from ..export.conversation import digest, said_by
from .dataset import ROW_BITS, Dataset, Part
from .unfinished import describe_unfinished

MAX_TEXT = 100_000
"""Characters of a text that a page shows at first; the rest is in the download."""

MAX_LEVELS = 100
"""Levels of nested values that a page shows."""

MAX_PREVIEW, MAX_PREVIEWED = 160, 1 << 20
"""Characters of the end of an answer in the table, and the bytes of the longest line read for
it."""

MAX_MEMBERS = 256
"""Rollouts of a group that are read."""


class Reader:
    """Reads rows of a dataset."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def rollout(self, row_id: int) -> JsonObject:
        """The line of a row and where it stands, its long texts cut."""
        number, part, row = self._dataset.locate(row_id)
        raw, key = part.index.line(row), part.index.key(row)
        output = self._dataset.output_of(number)
        labels, rewards = output.labels, output.group_rewards()
        score = rewards.of(key) if rewards else None
        line = _read_for_people(raw)
        is_whole = isinstance(line.get("response"), dict)
        return {
            "id": row_id,
            "file": output.name,
            "unfinished": None if is_whole else _cut(describe_unfinished(output, key, line)),
            "status": status_of(part.index.columns, row),
            "key": key._asdict(),
            "group": score._asdict() if score else None,
            "labels": dict(labels.on(Labelled(*key))),
            "task_labels": dict(labels.on(Labelled.task(key.task_id))),
            "size": len(raw),
            "line": _cut(line),
            "failures": self._failures_of(number, row),
        }

    def preview(self, part: Part, row: int) -> str | None:
        """The end of the answer, where the result stands; None for a line that is long or was
        edited."""
        if part.index.columns.lengths[row] > MAX_PREVIEWED:
            return None
        try:
            line = parse_line(part.index.line(row)) or {}
        except LineChanged:
            return None
        if isinstance(line.get("response"), dict):
            return " ".join(rollout_of(line).text[-MAX_PREVIEW:].split())
        failure = line.get("failure")
        return str(failure.get("message"))[:MAX_PREVIEW] if isinstance(failure, dict) else None

    def raw(self, row_id: int) -> tuple[str, bytes]:
        """A name for the download, and the line as it stands in the file, without provider data."""
        _, part, row = self._dataset.locate(row_id)
        key, raw = part.index.key(row), part.index.line(row)
        if has_provider_data(raw):
            raw = orjson.dumps(_read_for_people(raw))
        return f"{key.task_id}-{key.rollout_index}.json", raw

    def group(self, row_id: int) -> JsonObject:
        """All rollouts of the task in the same file."""
        number, part, row = self._dataset.locate(row_id)
        task_id, output = part.index.columns.task_id(row), self._dataset.output_of(number)
        places = [
            (at, each, found)
            for at, each in enumerate(self._dataset.parts)
            if self._dataset.output_of(at) is output
            for found in rows_of_task(each.index.columns, task_id)
            if each.counts(found)
        ]
        members = [self._member(*place) for place in places[:MAX_MEMBERS]]
        return {
            "task_id": task_id,
            "file": output.name,
            "labels": dict(output.labels.on(Labelled.task(task_id))),
            "figures": next((each["figures"] for each in members if "figures" in each), None),
            "members": members,
            "num_members": len(places),
        }

    def _member(self, number: int, part: Part, row: int) -> JsonObject:
        columns, output = part.index.columns, self._dataset.output_of(number)
        names = list(dict.fromkeys(each.name for each in columns.scores))
        key = part.index.key(row)
        member: JsonObject = {
            "id": number << ROW_BITS | row,
            **key._asdict(),
            "status": status_of(columns, row),
            "reward": columns.value("reward", row),
            "scores": columns.fields(row, names),
            "num_turns": columns.value("num_turns", row),
            "output_tokens": columns.value("output_tokens", row),
            "finish_reason": columns.value("finish_reason", row),
            "labels": dict(output.labels.on(Labelled(*key))),
        }
        raw = part.index.line(row)
        rollout = output.read(raw, key, output.group_rewards())
        if rollout is None:
            failure = orjson.loads(raw).get("failure") or {}
            return {**member, "text": str(failure.get("message", ""))}
        if rollout.group:
            member |= {"group_reward": rollout.group_reward, "figures": rollout.group.figures}
        member["text"] = _cut(rollout.text)
        member["prompt"] = _cut(rollout.line.get("responses_create_params"))
        member["digest"] = digest(said_by(rollout)).hex()
        return member

    def _failures_of(self, number: int, row: int) -> list[JsonObject]:
        """Earlier failures of the same key, as lines of the failures file."""
        index = self._dataset.parts[number].index
        key = index.key(row)
        other = self._dataset.failures_of(number)
        if other.index is index:
            return []
        rows = rows_of_task(other.index.columns, key.task_id)
        return [
            _cut(orjson.loads(other.index.line(each)))
            for each in rows
            if other.index.key(each) == key
        ]

    def set_label(self, row_id: int, asked: Any) -> JsonObject:
        """Set or remove a label; ConfigError for a request that is none, LineChanged if the row no
        longer has the `key` that the page shows."""
        is_label = isinstance(asked, dict) and isinstance(asked.get("label"), str)
        if not is_label or not isinstance(asked.get("note") or "", str):
            raise ConfigError("a label is a JSON object with 'label', and 'note' if there is one")
        if asked.get("on") not in (None, "task", "rollout"):
            raise ConfigError(f"on={asked['on']!r}: a label is on a rollout or on its task")
        if not isinstance(asked.get("removed") or False, bool):
            raise ConfigError(f"removed={asked['removed']!r}: give true or false")
        number, part, row = self._dataset.locate(row_id)
        key, labels = part.index.key(row), self._dataset.output_of(number).labels
        if asked.get("key") not in (None, key._asdict()):
            raise LineChanged(f"{part.index.path} was edited")
        what = Labelled.task(key.task_id) if asked.get("on") == "task" else Labelled(*key)
        if asked.get("removed") is True:
            labels.remove(what, asked["label"])
        else:
            labels.set(what, asked["label"], asked.get("note") or "")
        self._dataset.version += 1
        return {"labels": dict(labels.on(what))}


def _cut(value: Any, level: int = 0) -> Any:
    """The value with long texts and deep levels cut; an image, as a data URL or as the result of a
    generation, stays whole."""
    if isinstance(value, str):
        if len(value) <= MAX_TEXT or value.startswith("data:image/"):
            return value
        return f"{value[:MAX_TEXT]}\n… {len(value) - MAX_TEXT:,} more characters: see the download"
    if isinstance(value, list | dict) and level >= MAX_LEVELS:
        return "… deeper levels: see the download"
    if isinstance(value, list):
        return [_cut(each, level + 1) for each in value]
    if isinstance(value, dict):
        is_image = value.get("type") == "image_generation_call"
        return {
            name: each if is_image and name == "result" else _cut(each, level + 1)
            for name, each in value.items()
        }
    return value


def _read_for_people(raw: bytes) -> Any:
    """A line for people: without what only an endpoint can read."""
    line = orjson.loads(raw)
    if not has_provider_data(raw):
        return line
    response, params = line.get("response"), line.get("responses_create_params")
    if isinstance(response, dict):
        line["response"] = without_provider_data(response)
    if isinstance(params, dict):
        line["responses_create_params"] = without_provider_data(params, "input")
    return line
