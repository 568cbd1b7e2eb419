"""One rollout, and the group of a task, as the pages show them."""

from collections import OrderedDict
from typing import Any

import orjson

from ...errors import ConfigError, number_of
from ...reading import parse_line, read_object
from ...responses import as_object, has_provider_data, input_items
from ...store.filters.masks import rows_of_task, status_of
from ...store.index import LineChanged
from ...store.lines import rollout_of
from ...store.notes.labels import Labelled
from ...store.notes.token_scores import read_token_scores
from ...store.scope import repeat_command
from ...trajectory import without_tokens
from ...types import JsonObject, Key
from ..branches import branch_command
from ..export.conversation import digest, said_by
from ..withheld import is_withheld, withhold
from .cuts import Cuts
from .dataset import ROW_BITS, Dataset, Part, StoredOutput
from .outline import add_scans, describe_all, find_inside
from .raw_calls import describe_call
from .side_by_side import MAX_COLUMNS, put_side_by_side
from .stored_line import OUTPUT, StoredLine, WholeLine, parse_for_people, read_line
from .unfinished import describe_unfinished

MAX_RECENT = 2
"""Lines that were read last and are kept, so that the parts of one are not read again."""

MAX_ITEMS = 200
"""Items of one reply."""

MAX_SLICE = 1 << 20
"""Characters of a text in one reply."""

MAX_PREVIEW, MAX_PREVIEWED = 160, 1 << 20
"""Characters of the end of an answer in the table, and the bytes of the longest line read for
it."""

CURL = """\
curl "$OPENAI_BASE_URL/responses" \\
  -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" \\
  --data-binary @- <<'JSON'
{body}
JSON
"""

MAX_MEMBERS = 256
"""Rollouts of a group that are read."""


class Reader:
    """Reads rows of a dataset."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.is_for_others = False
        """Whether rows that may not be published are left out."""
        self._recent: OrderedDict[Any, StoredLine] = OrderedDict()

    def rollout(self, row_id: int, *, is_whole: bool = False) -> JsonObject:
        """The line of a row and where it stands. The middle of long texts is left out, and so are
        the items of a long line, unless `is_whole`. The findings of such a line may take longer:
        where they are None, `findings` has them."""
        number, part, row = self._dataset.locate(row_id)
        key, stored = part.index.key(row), self._read(row_id)
        line = stored.join() if is_whole else stored.head
        output = self._dataset.output_of(number)
        labels, rewards = output.labels, output.group_rewards()
        score = rewards.of(key) if rewards else None
        has_response = isinstance(line.get("response"), dict)
        unfinished = None if has_response else describe_unfinished(output, key, line)
        known = {"response": {"output": unfinished["turns"]}} if unfinished else None
        if known:
            described = describe_all(known)
        elif stored.is_described or is_whole:
            described = stored.described
        else:
            described = {"steps": stored.steps, "findings": None}
        cuts = Cuts()
        return {
            "id": row_id,
            "file": output.name,
            "unfinished": unfinished and Cuts().cut(unfinished),
            "status": status_of(part.index.columns, row),
            "key": key._asdict(),
            "group": score._asdict() if score else None,
            "labels": dict(labels.on(Labelled(*key))),
            "task_labels": dict(labels.on(Labelled.task(key.task_id))),
            "size": part.index.columns.lengths[row],
            "repro": _find_repro(output, key),
            "token_scores": read_token_scores(output.paths.main, key),
            "has_items": is_whole or not stored.is_long,
            **add_scans(described, output.scans.findings(key)),
            "line": cuts.cut(line),
            "cuts": cuts.found,
            "failures": self._failures_of(number, row),
        }

    def findings(self, row_id: int) -> JsonObject:
        """What was found in a rollout, and how much."""
        number, part, row = self._dataset.locate(row_id)
        scans = self._dataset.output_of(number).scans.findings(part.index.key(row))
        found = add_scans(self._read(row_id).described, scans)
        return {name: found[name] for name in ("findings", "num_findings")}

    def items(self, row_id: int, begin: int, end: int) -> JsonObject:
        """Items of the output of a long line, and where their texts are cut."""
        stored, cuts, begin = self._read(row_id), Cuts(), max(0, begin)
        items = stored.items(begin, min(max(begin, end), begin + MAX_ITEMS))
        shown = [cuts.cut(each, (*OUTPUT, at)) for at, each in enumerate(items, begin)]
        return {"begin": begin, "items": shown, "cuts": cuts.found}

    def request(self, row_id: int, turn: int) -> JsonObject:
        """Commands for a shell: the request that a turn's reply answers, which is what was asked
        and what came before the turn, and `again`, which makes the rollout again from the turn."""
        stored, step = self._read_turn(row_id, turn)
        asked = _read_request(stored.head)
        body = {**asked, "input": [*asked["input"], *stored.items(0, step["begin"])]}
        body = without_tokens(body)
        number, part, row = self._dataset.locate(row_id)
        output, key = self._dataset.output_of(number), part.index.key(row)
        command = _read_command(output)
        again = branch_command(part.index.path, command, key, turn) if command else ""
        return {"curl": CURL.format(body=orjson.dumps(body).decode()), "again": again}

    def call(self, row_id: int, turn: int) -> JsonObject:
        """The request that a turn's reply answers, and the reply, as `describe_call` gives them."""
        stored, step = self._read_turn(row_id, turn)
        number, part, row = self._dataset.locate(row_id)
        config = read_object(self._dataset.output_of(number).paths.manifest).get("config")
        tape = as_object(config).get("record")
        found = describe_call(stored, step, _read_request(stored.head), tape, part.index.key(row))
        return Cuts().cut(without_tokens(found))

    def _read_turn(self, row_id: int, turn: int) -> tuple[StoredLine, JsonObject]:
        """The line of a row, and the head of one of its turns."""
        stored = self._read(row_id)
        steps = stored.steps
        if not 0 < turn <= len(steps):
            raise ConfigError(f"turn={turn}: the rollout has {number_of(len(steps), 'turn')}")
        return stored, steps[turn - 1]

    def text(self, row_id: int, path: str, start: int, count: int) -> JsonObject:
        """A part of a text of a line; `path` is a JSON list of names and numbers."""
        start, count = max(0, start), max(0, min(count, MAX_SLICE))
        found, length = list[str](), 0
        try:
            for piece in self._read(row_id).text(orjson.loads(path)):
                begin = max(0, start - length)
                found.append(piece[begin : max(begin, start + count - length)])
                length += len(piece)
        except (ValueError, TypeError, LookupError):
            raise ConfigError(f"path={path[:200]!r}: the line has no text there") from None
        return {"text": "".join(found), "length": length}

    def inside(self, row_id: int, text: str) -> JsonObject:
        """Where a text stands in a rollout."""
        stored = self._read(row_id)
        turns = (
            (step["number"], step["begin"], stored.items(step["begin"], step["end"]))
            for step in stored.steps
        )
        return find_inside(stored.head, turns, text, stored.text)

    def _read(self, row_id: int) -> StoredLine:
        _, part, row = self._dataset.locate(row_id)
        columns = part.index.columns
        which = (str(part.index.path), columns.offsets[row], columns.checks[row])
        if (held := self._recent.pop(which, None)) is None:
            held = read_line(part.index, row)
            if self.is_for_others and is_withheld(held.head):
                held = WholeLine(withhold(held.join()))
        self._recent[which] = held
        while len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)
        return held

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
            raw = orjson.dumps(parse_for_people(raw))
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

    def trails(self, named: str) -> JsonObject:
        """The turns of several rows next to each other; `named` are their ids."""
        try:
            ids = [int(each) for each in named.split(",")][:MAX_COLUMNS]
        except ValueError:
            raise ConfigError(f"ids={named!r:.80}: give numbers, with commas") from None
        return put_side_by_side([self._read(each).join() for each in ids])

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
        line = self._read(member["id"]).join()
        rollout = output.join(line, key, output.group_rewards())
        if rollout is None:
            failure = as_object(line.get("failure"))
            return {**member, "text": str(failure.get("message", ""))}
        if rollout.group:
            member |= {"group_reward": rollout.group_reward, "figures": rollout.group.figures}
        member["text"] = Cuts().cut(rollout.text)
        line = withhold(rollout.line) if self.is_for_others else rollout.line
        member["prompt"] = Cuts().cut(line.get("responses_create_params"))
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
            Cuts().cut(orjson.loads(other.index.line(each)))
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
        self._dataset.note_label(number)
        return {"labels": dict(labels.on(what))}


def _read_request(line: JsonObject) -> JsonObject:
    """The first request of a rollout, with its input as items."""
    params = as_object(line.get("responses_create_params"))
    model = params.get("model") or as_object(line.get("rollout")).get("model")
    return {**params, "model": model, "input": input_items(params)}


def _find_repro(output: StoredOutput, key: Key) -> str:
    """The command that makes a rollout again; empty if it is not known."""
    command = _read_command(output)
    return repeat_command(command, key) if command else ""


def _read_command(output: StoredOutput) -> str:
    """The command of the run; empty if it is not known."""
    command = read_object(output.paths.manifest).get("command")
    return command if isinstance(command, str) else ""
