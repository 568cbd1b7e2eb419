"""Defines the keys of the commands that read rollouts."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from .command import Command, CommandKeys
from .trackers import OtelConfig


class ReadingCommand(Command):
    """Keys of the commands that read files of rollouts. Words without a `=` are files."""

    has_servers: ClassVar[bool] = False
    inputs: list[str] = Field(
        [], description="Files of rollouts, or folders with such files; also as plain words."
    )


class OfInputCommand(ReadingCommand):
    """Keys of the commands that can leave out the rollouts of other inputs."""

    input_jsonl_fpath: Path | None = Field(
        None, description="Tasks: only their rollouts count. An output may hold those of others."
    )


class CompareConfig(OfInputCommand):
    """ng_compare: compare files of rollouts task by task."""

    where: str | None = Field(
        None, description="Compare rollouts for which this holds: finish_reason == 'stop'."
    )
    pass_threshold: float = Field(1.0, description="Lowest reward that counts as a success.")


class MergeConfig(ReadingCommand):
    """ng_merge: merge outputs into one: the shards of a collection, or any files of rollouts."""

    output_jsonl_fpath: Path = Field(description="The file to write; it must not exist.")
    input_jsonl_fpath: Path | None = Field(
        None, description="Tasks: write the rollouts in their order, and name those without any."
    )
    pass_threshold: float = Field(1.0, description="Lowest reward that counts as a success.")


class ViewConfig(ReadingCommand):
    """ng_view: look at rollouts in a browser. A folder is searched for files of rollouts."""

    port: int = Field(6300, ge=0, le=65535, description="Port on this machine; 0 takes a free one.")
    open_browser: bool = Field(False, alias="open", description="Open the page in a browser.")
    static_fpath: Path | None = Field(
        None, alias="static", description="Write one HTML file to share, and serve nothing."
    )
    where: str = Field("", description="Filter that the page begins with: reward < 0.5.")
    search: str = Field("", description="Text, or /regular expression/, to find in the lines.")
    sort: str = Field("", description="Column to sort by; with a - in front, largest first.")


class ReportConfig(OfInputCommand):
    """ng_report: write a page with figures and plots of rollouts."""

    output_fpath: Path = Field(Path("report.html"), description="The page to write.")
    title: str = Field("Rollouts", description="Title of the page.")
    where: str | None = Field(
        None, description="Report on rollouts for which this holds: reward < 0.5."
    )
    pass_threshold: float = Field(1.0, description="Lowest reward that counts as a success.")


class SelectionConfig(OfInputCommand):
    """Keys of the commands that write stored rollouts in another form."""

    output_fpath: Path | None = Field(None, description="File to write; a report goes beside it.")
    where: str | None = Field(
        None, description="Keep rollouts for which this holds: reward > 0.5 and num_turns < 8."
    )
    min_reward: float | None = Field(None, description="Keep rollouts with at least this reward.")
    max_reward: float | None = Field(None, description="Keep rollouts with at most this reward.")
    top_k_per_group: int | None = Field(
        None, ge=1, description="Keep this many of each task's rollouts, the highest rewards first."
    )
    dedupe: bool = Field(False, description="Keep one of a task's rollouts that read the same.")
    drop_truncated: bool = Field(False, description="Leave out responses that were cut off.")
    drop_zero_variance: bool = Field(
        False, description="Leave out tasks whose rollouts all have the same reward."
    )
    test_fraction: float = Field(
        0.0, ge=0, lt=1, description="Share of the tasks to write to <stem>_test, by a hash."
    )
    split_seed: int = Field(0, description="Another seed puts other tasks into the test file.")
    reward_key: str | None = Field(
        None,
        description="Field of the line to use as reward, with dots: scores.style. Default: the"
        " group's reward where its group was scored, else reward.",
    )
    label_key: str | None = Field(
        None, description="Field of the row with the right answer. Default: expected_answer, …"
    )
    pass_threshold: float = Field(1.0, description="Lowest reward that counts as a success.")
    arguments: Literal["text", "object"] = Field(
        "text", description="How a tool call's arguments are written: as JSON text, or parsed."
    )


class ExportConfig(SelectionConfig):
    """ng_export: write rollouts in the format of a trainer."""

    format: str | None = Field(None, description="Name of the format; without it, they are listed.")
    advantage: Literal["grpo", "dr_grpo", "rloo"] | None = Field(
        None,
        description="Add a column `advantage`, over all verified rollouts of a task; trl_rollout"
        " has it anyway. Default there: grpo.",
    )
    otel: OtelConfig = Field(
        default_factory=OtelConfig, description="OpenTelemetry, for format=otlp."
    )


class PairRule(CommandKeys):
    """One way to choose pairs among the rollouts of a task."""

    type: Literal["correctness", "coherence", "best_worst", "top_bottom", "length_matched"]
    k: int = Field(default=1, ge=1, description="top_bottom: how many of each end.")
    min_margin: float | None = Field(
        default=None, ge=0, description="The difference of the rewards must be larger than this."
    )
    max_length_ratio: float = Field(
        default=1.25, ge=1, description="length_matched: longer text over shorter, in words."
    )
    max_per_task: int | None = Field(
        default=None, ge=1, description="Pairs of one task by this rule."
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value


class PairsConfig(SelectionConfig):
    """ng_pairs: write preference pairs of stored rollouts."""

    format: str = Field("trl_dpo", description="Name of the preference format.")
    rules: list[PairRule] = Field(
        [],
        description="correctness, best_worst, top_bottom, length_matched, coherence; or objects"
        " with type, k, min_margin, max_length_ratio, max_per_task. Default: best_worst.",
    )
    rules_fpath: Path | None = Field(None, description="YAML file with the list `rules`.")
    max_per_task: int | None = Field(None, ge=1, description="Pairs of one task by all rules.")
    max_pairs: int | None = Field(
        None, ge=1, description="Pairs in all, spread evenly over the tasks."
    )
    dedupe_pairs: bool = Field(True, description="Keep one of a task's pairs that read the same.")
    drop_truncated: bool = Field(True, description="Leave out responses that were cut off.")
    drop_empty: bool = Field(True, description="Leave out responses that say nothing.")
    drop_identical: bool = Field(True, description="Leave out pairs of two equal responses.")
    prompt: str = Field(
        "chosen",
        description="Prompt of a pair: that of the chosen rollout; with arm:<id> that of an arm; or"
        " a YAML file with `system` and `user` templates, filled from the row.",
    )
    allow_empty: bool = Field(False, description="Exit 0 where no pair was found.")
