"""Defines the keys of `ng_ctl`, which steers running collections."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from .command import Command
from .parallelism import Parallelism


class CtlConfig(Command):
    """ng_ctl: list running collections, or steer one. Keys need no + in front, and `pause`,
    `resume` and `stop` are words."""

    has_servers: ClassVar[bool] = False
    output_jsonl_fpath: Path | None = Field(
        None, description="Output of the collection to steer, where several run."
    )
    run_id: str | None = Field(None, description="Its id, or the start of it, as listed.")
    parallelism: Parallelism | None = Field(
        None, description="Rollouts in flight: an int, `auto`, or `min-start-max`."
    )
    paused: bool | None = Field(
        None, description="true (or the word pause): start nothing more; false (resume): go on."
    )
    max_cost_usd: float | None = Field(
        None, description="Cost limit of the run, in US dollars; null = none."
    )
    max_total_tokens: int | None = Field(
        None, description="Limit on the tokens of the run; null = none."
    )
    max_minutes: float | None = Field(
        None, description="Start nothing more this many minutes after the start; null = no limit."
    )
    cancel: str | list[str] | None = Field(
        None,
        description="Cancel rollouts in flight, as <task_id>:<rollout_index>: they are owed again.",
    )
    drop: bool = Field(False, description="Record what is cancelled as failed, for good.")
    requeue: str | list[str] | None = Field(
        None, description="Start rollouts again that are in flight, or were cancelled."
    )
    stop: bool = Field(
        False, description="End the run (or the word stop): what is in flight may finish."
    )
    now: bool = Field(False, description="With stop: cancel what is in flight.")
    wait: bool = Field(False, description="With pause: return once nothing is in flight.")
    dry_run: bool = Field(False, description="Say what would change, and change nothing.")


NO_KNOBS = frozenset(
    {*Command.model_fields, "output_jsonl_fpath", "run_id", "stop", "now", "wait", "dry_run"}
)
"""The keys that are not sent to the run as they are."""
