"""Defines the keys about groups of rollouts: how they are scored, and which trainer gets them."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from .command import Command, CommandKeys


class GroupsConfig(CommandKeys):
    """How the rollouts of a task are scored together, if their server has `verify_group`."""

    incomplete_groups: Literal["wait", "partial", "drop"] = Field(
        "wait",
        description="Groups with a failed rollout. wait: score them when a later run completes"
        " them; partial: score the others; drop: do not score them.",
    )
    min_members: int = Field(
        2, ge=1, description="partial: score groups with at least this many rollouts."
    )
    group_deadline_s: float | None = Field(
        None,
        gt=0,
        description="partial and drop: wait this long for the rest of a group after its first"
        " rollout; null = until each has ended.",
    )
    verify_group_timeout_s: float = Field(
        600, gt=0, description="Time limit of the verification of one group."
    )
    num_groups_in_parallel: int = Field(
        16, ge=1, description="Verifications of groups at the same time."
    )

    @model_validator(mode="after")
    def _needs_a_policy(self) -> "GroupsConfig":
        if self.group_deadline_s is not None and self.incomplete_groups == "wait":
            raise ValueError(
                "group_deadline_s: after it a group is scored or dropped as it is: add"
                " +incomplete_groups=partial or drop"
            )
        return self


class ProducingConfig(CommandKeys):
    """How often the tasks are gone through, and where their groups go."""

    epochs: int | None = Field(
        1, ge=1, description="How often to go through the tasks; null = for ever."
    )
    longest_first: bool = Field(
        False,
        description="Begin with the tasks whose answers were longest in earlier epochs.",
    )
    buffer: str | None = Field(
        None,
        description="Buffer that a trainer takes groups from: memory, redis://…/NAME, ray://…/NAME"
        " or http://…, with its policy: ?batch=32&staleness=1.",
    )
    buffer_port: int = Field(
        0, ge=0, le=65535, description="Port of a buffer in memory; 0 takes a free one."
    )

    @model_validator(mode="after")
    def _has_a_buffer_for_the_port(self) -> "ProducingConfig":
        if self.buffer_port and not (self.buffer or "").startswith("memory"):
            raise ValueError("buffer_port: only a buffer in memory has one: add +buffer=memory")
        return self


class SimulateTrainerConfig(Command):
    """ng_simulate_trainer: take batches from a buffer at a given pace, and train nothing."""

    has_servers: ClassVar[bool] = False

    buffer: str = Field(description="Buffer to take groups from: redis://…, ray://… or http://….")
    batch: int | None = Field(None, ge=1, description="Groups of a step. Default: the buffer's.")
    steps: int | None = Field(None, ge=1, description="Steps to take; null = until none will come.")
    step_s: float = Field(1.0, ge=0, description="Time of a step, in seconds.")
    sync_s: float = Field(
        0.0, ge=0, description="Time after a step until the servers have its weights."
    )
    max_staleness: int | None = Field(
        None, ge=0, description="Drop groups that are staler. Default: the buffer's."
    )
    max_wait_s: float | None = Field(
        None, gt=0, description="End where a batch takes longer; null = wait."
    )
    finish: bool = Field(True, description="Tell the collection at the end that nothing is needed.")
    auth_token: str | None = Field(None, description="Secret of the run, beyond this machine.")
