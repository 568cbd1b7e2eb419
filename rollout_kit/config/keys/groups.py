"""Defines the keys of commands whose servers may score groups of rollouts."""

from typing import Literal

from pydantic import BaseModel, Field, model_validator


class GroupsConfig(BaseModel):
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
