"""Writes stored rollouts, or pairs of them, in the format of a trainer, with a report beside."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from ..analysis.export.conversation import Conversation, Unfit, as_texts, digest, read_conversation
from ..analysis.export.dataset_folder import DatasetFolder
from ..analysis.export.export_report import (
    ExportReport,
    check_exports,
    explain_nothing,
    find_exports,
    format_report,
    report_path,
)
from ..analysis.export.formats import FORMATS, Format, find_format
from ..analysis.export.grouped import build_group
from ..analysis.export.pairs import Two, plan_pairs
from ..analysis.export.preferences import Pair, PairPrompt
from ..analysis.export.row_files import RowFile
from ..analysis.export.selection import (
    NO_RESPONSE,
    Selection,
    is_test_of,
    read_selected,
    score_of,
    select,
)
from ..analysis.export.trainers import Context, identify, read_trace
from ..analysis.withheld import WHY, is_withheld
from ..collecting.trackers.installed import check_installed
from ..collecting.trackers.otel_sender import NotSent, SpanSender
from ..config.keys import ExportConfig, OtelConfig, PairsConfig, SelectionConfig
from ..errors import ConfigError, OutputError, suggest
from ..store.files import write_json
from ..store.scope import Group
from ..types import JsonObject, Key, Rollout
from . import entry

BATCH = 100
"""Rollouts whose traces are sent in one request."""


def export(config: ExportConfig) -> JsonObject:
    """Write the rollouts and return the report; ConfigError if nothing is left to write."""
    form = find_format(config.format)
    if config.advantage and form.of_rollout is None and config.format != "trl_rollout":
        raise ConfigError(f"advantage: format={config.format} has no rows of single rollouts")
    if config.otel.model_fields_set and config.format != "otlp":
        raise ConfigError("otel: these keys need format=otlp")
    if config.otel.endpoint is not None:
        return send_traces(config)
    if form.of_pair is not None:
        return export_pairs(PairsConfig.model_validate(_given(config)))
    with _files(config, form) as files:
        selection = select(config)
        report = files.report
        report.left_out = selection.left_out
        for group, rollouts in read_selected(selection.source, selection.groups):
            chosen = selection.groups[group]
            ordered = [rollouts[each.key] for each in chosen if each.key in rollouts]
            if bare := len(chosen) - len(ordered):
                report.left_out[NO_RESPONSE] += bare
            _write_group(files, selection, group, ordered)
        return files.finish(selection.num_read, "rollout")


def send_traces(config: ExportConfig) -> JsonObject:
    """Send the rollouts' traces and return the report; OutputError where they are refused."""
    check_installed(config.otel)
    if config.output_fpath is not None:
        raise ConfigError("otel.endpoint and output_fpath: traces go to one of them")
    keys, report, sent = config.otel, ExportReport(), 0
    selection = select(config)
    report.left_out = selection.left_out
    sender = SpanSender(str(keys.endpoint), keys.headers, keys.service)
    groups = read_selected(selection.source, selection.groups)
    found = chain.from_iterable(each.values() for _, each in groups)
    while rollouts := list(islice(found, BATCH)):
        traces = []
        for rollout in rollouts:
            try:
                traces.append(read_trace(rollout, keys))
                report.add(rollout.key.task_id, reward=rollout.reward)
            except Unfit as error:
                report.left_out[str(error)] += 1
        try:
            sender.send(chain.from_iterable(traces))
        except NotSent as error:
            raise OutputError(
                f"{keys.endpoint}: {error}; {sent:,} rollouts were sent before. The same command"
                " sends all again, as the same traces"
            ) from None
        sent += len(traces)
    return {"sent": {keys.endpoint: sent}, "read": selection.num_read, **report.to_json()}


def export_pairs(config: PairsConfig) -> JsonObject:
    """Write preference pairs and return the report; ConfigError for none, unless allowed."""
    form = find_format(config.format)
    if form.of_pair is None:
        names = ", ".join(name for name, each in FORMATS.items() if each.of_pair)
        raise ConfigError(f"format={config.format} has no pairs; these have: {names}")
    prompt = PairPrompt.parse(config.prompt)
    with _files(config, form) as files:
        selection = select(config, with_texts=True, arm=prompt.arm)
        planned = plan_pairs(selection, config)
        report = files.report
        wanted = {
            group: {each for two in pairs for each in two[:2]}
            for group, pairs in planned.pairs.items()
        }
        for group, member in selection.of_arm.items():
            wanted.get(group, set()).add(member)
        for group, rollouts in read_selected(selection.source, wanted):
            read, member = _reader(config), selection.of_arm.get(group)
            in_arm = rollouts.get(member.key) if member else None
            for two in planned.pairs[group]:
                with files.leaving_out_unfit():
                    pair = _pair(two, rollouts, read, prompt, in_arm)
                    _write_pair(files, form.of_pair, pair)
        report.left_out += selection.left_out + planned.skipped
        return files.finish(selection.num_read, "pair", is_allowed=config.allow_empty)


def _given(config: ExportConfig) -> JsonObject:
    return config.model_dump(exclude_unset=True, by_alias=True)


@dataclass(slots=True)
class _Files:
    """The main file and the one of the test tasks, and what is counted while they are written."""

    config: SelectionConfig
    name: str
    form: Format
    main: RowFile
    test: RowFile | None
    is_test: Callable[[str], bool]
    path: Path
    """What the user has named: the main file, or a folder."""
    folder: DatasetFolder | None = None
    report: ExportReport = field(default_factory=ExportReport)
    _is_raw: bool | None = None
    """Whether the prompts written so far are raw texts."""
    _fields: set[str] = field(default_factory=set)
    """Names of fields that rows of the input have."""

    def note_fields(self, read: Conversation) -> None:
        """Note what a row has whose label is wanted."""
        if self.config.label_key not in self._fields:
            self._fields.update(read.row)

    def of(self, task_id: str) -> RowFile:
        return self.test if self.test is not None and self.is_test(task_id) else self.main

    def context(self, task_id: str, score: float | None, scores: list[float]) -> Context:
        file = self.of(task_id)
        split = "train" if file is self.main else "test"
        key, threshold = self.config.label_key, self.config.pass_threshold
        method = getattr(self.config, "advantage", None)
        otel = getattr(self.config, "otel", OtelConfig())
        return Context(key, threshold, score, scores, split, file.num_rows, method, otel)

    def fit(self, row: JsonObject, is_raw: bool) -> JsonObject:
        """The row as it is written; Unfit if the format, or this file, cannot have its prompt."""
        if is_raw and not self.form.takes_text:
            raise Unfit("its prompt is raw text, and the format applies a chat template")
        if self._is_raw not in (None, is_raw):
            kinds = ("raw text", "a chat") if is_raw else ("a chat", "raw text")
            raise Unfit(f"its prompt is {kinds[0]}, and the first one is {kinds[1]}")
        self._is_raw = is_raw
        return as_texts(row) if is_raw and not self.form.is_bare else row

    def note_tools(self, read: Conversation) -> None:
        """Count a row that cannot say which tools the model had."""
        self.report.without_tools += bool(read.tools) and not self.form.takes_tools

    @contextmanager
    def leaving_out_unfit(self) -> Iterator[None]:
        """Count what the format cannot express."""
        try:
            yield
        except Unfit as error:
            self.report.left_out[str(error)] += 1

    def finish(self, num_read: int, what: str, *, is_allowed: bool = False) -> JsonObject:
        """Put the files in their places and return the report."""
        found = {"format": self.name, "read": num_read, **self.report.to_json()}
        if labels := self.report.labels:
            counts = {"right": labels[True], "wrong": labels[False]}
            found["labels"] = {**counts, "pass_threshold": self.config.pass_threshold}
        written = [file for file in (self.main, self.test) if file is not None and file.num_rows]
        if not written and not is_allowed:
            reasons = list(found["left_out"].items())
            raise ConfigError(explain_nothing(num_read, reasons, what))
        key = self.config.label_key
        if key is not None and self._fields and key not in self._fields:
            raise ConfigError(f"label_key={key}: no row has it{suggest(key, self._fields)}")
        beside: list[str] = []
        for file in written or [self.main]:
            file.complete()
        if self.form.companion is not None and written:
            beside = [str(self.form.companion({file.path: file.columns for file in written}))]
        files = {str(file.path): file.num_rows for file in written or [self.main]}
        if self.folder is not None:
            found["splits"] = {file.path.name: file.num_rows for file in written}
            found["card"] = self.folder.complete(written)
            files = {str(self.path): sum(files.values())}
        settings = self.config.model_dump(
            mode="json", exclude_defaults=True, exclude={"json_output"}
        )
        others = find_exports(self.path) - {Path(each).name for each in files}
        if earlier := sorted(name for name in others if self.path.with_name(name).exists()):
            found["earlier"] = earlier
        found = {"files": files, "beside": beside, **found, "settings": settings}
        if what == "pair":
            found.setdefault("rules", {})
        write_json(report_path(self.path), found)
        for each in [*(written or [self.main]), self.folder]:
            if each is not None:
                each.commit()
        return found


@contextmanager
def _files(config: SelectionConfig, form: Format) -> Iterator[_Files]:
    path, test, folder = _check_output(config, form), None, None
    of_test = path.with_stem(f"{path.stem}_test")
    has_two = bool(config.test_fraction) and not form.is_folder
    check_exports(path, [path, of_test] if has_two else [path])
    if form.is_folder:
        folder = DatasetFolder(path)
        main = folder.open_split("train")
        test = folder.open_split("test") if config.test_fraction else None
    else:
        main = form.open_file(path)
        test = form.open_file(of_test) if has_two else None
    name = str(getattr(config, "format", ""))
    try:
        yield _Files(config, name, form, main, test, is_test_of(config), path, folder)
    finally:
        for file in (main, test, folder):
            if file is not None:
                file.discard()


def _check_output(config: SelectionConfig, form: Format) -> Path:
    if config.output_fpath is None:
        raise ConfigError("name the file to write: +output_fpath=train.jsonl")
    path = config.output_fpath.expanduser()
    if form.is_folder and path.suffix in (".jsonl", ".json", ".parquet"):
        raise ConfigError(f"output_fpath={path}: this format is a folder; name one, as dataset")
    if not form.is_folder and path.suffix not in (form.suffix, form.suffix.removesuffix("l")):
        raise ConfigError(f"output_fpath={path}: the name must end in {form.suffix}")
    if form.is_parquet and config.arguments == "object":
        raise ConfigError(
            "arguments=object: Parquet would give all calls each other's arguments; use text"
        )
    real = os.path.realpath(path)
    if any(os.path.realpath(Path(each).expanduser()) == real for each in config.inputs):
        raise ConfigError(f"output_fpath={path} is also an input; choose another name")
    return path


def _write_group(
    files: _Files, selection: Selection, group: Group, rollouts: list[Rollout]
) -> None:
    form, config = files.form, files.config
    scores, file = selection.scores.get(group, []), files.of(group.task_id)
    read = _reader(config, is_answered=form.of_task is None, takes_images=form.takes_images)
    if form.of_group:
        members = []
        for rollout in rollouts:
            with files.leaving_out_unfit():
                members.append(read(rollout))
        if members:
            files.note_fields(members[0])
            files.note_tools(members[0])
            file.write(build_group(members, config.label_key, config.pass_threshold))
            for each in members:
                _count(files, each.rollout)
        return
    asked: set[bytes] = set()
    for rollout in rollouts:
        score = score_of(rollout, config.reward_key)
        with files.leaving_out_unfit():
            is_new = True
            if form.of_task is not None:  # one row says all about the task, or each of its prompts
                each = read(rollout)
                files.note_fields(each)
                is_new = (prompt := digest(each.prompt)) not in asked
                asked.add(prompt)
            if is_new:
                for row in _rows(files, rollout, read, files.context(group.task_id, score, scores)):
                    file.write(row)
                    if form.label is not None:
                        files.report.labels[row[form.label]] += 1
            _count(files, rollout)


def _rows(
    files: _Files, rollout: Rollout, read: Callable[[Rollout], Conversation], context: Context
) -> Iterable[JsonObject]:
    form = files.form
    if form.of_line is not None:
        if is_withheld(rollout.line):
            raise Unfit(WHY)
        return list(form.of_line(rollout, context))
    build, own = form.of_task, {}
    if build is None:
        build = form.of_rollout
        own = {} if form.is_bare else identify(rollout, context.score)
        if context.method is not None:
            own["advantage"] = context.advantage()
    assert build is not None
    row = files.fit(build(each := read(rollout), context), each.is_raw)
    files.note_tools(each)
    return [{**row, **own}]


def _count(files: _Files, rollout: Rollout) -> None:
    score = score_of(rollout, files.config.reward_key)
    words = len(rollout.text.split())
    files.report.add(rollout.key.task_id, words=words, reward=score)


def _reader(
    config: SelectionConfig, *, is_answered: bool = True, takes_images: bool = False
) -> Callable[[Rollout], Conversation]:
    """A function that reads a rollout as messages, once for each key."""
    known: dict[Key, Conversation] = {}

    def read(rollout: Rollout) -> Conversation:
        found = known.get(rollout.key)
        if found is None:
            found = read_conversation(
                rollout, config.arguments, is_answered=is_answered, takes_images=takes_images
            )
            known[rollout.key] = found
        return found

    return read


def _pair(
    two: Two,
    rollouts: dict[Key, Rollout],
    read: Callable[[Rollout], Conversation],
    prompt: PairPrompt,
    in_arm: Rollout | None,
) -> Pair:
    """The pair with its texts; `in_arm` is a rollout of the arm whose prompt it gets."""
    chosen, rejected = (read(rollouts[each.key]) for each in two[:2])
    asked = read_conversation(in_arm, is_answered=False) if in_arm else None
    messages, is_raw = prompt.of(chosen, asked)
    assert two.chosen.score is not None and two.rejected.score is not None
    return Pair(messages, chosen, rejected, two.chosen.score, two.rejected.score, two.rule, is_raw)


def _write_pair(files: _Files, build: Callable[[Pair], JsonObject], pair: Pair) -> None:
    key = pair.chosen.rollout.key
    row = files.fit(build(pair), pair.is_raw)
    files.note_tools(pair.chosen)
    files.of(key.task_id).write({**row, **pair.identify()})
    chosen, rejected = (len(e.rollout.text.split()) for e in (pair.chosen, pair.rejected))
    files.report.rules[pair.rule] += 1
    files.report.add(
        key.task_id, margin=pair.margin, words=chosen, longer_by_words=chosen - rejected
    )


def main(words: list[str]) -> int:
    command = entry.parse_files(words, ExportConfig)
    entry.show_of_files(command, export(command), format_report)
    return 0
