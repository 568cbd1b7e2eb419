"""The settings of a buffer: its bounds, and what happens at them."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ...config import fields
from ...errors import ConfigError
from .group import BufferedGroup

FilterName = Literal["zero_variance", "truncated", "non_finite"]


class BufferPolicy(BaseModel):
    """All sizes are numbers of groups. `None` means no bound."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    capacity: int = Field(
        default=1024, ge=1, description="Most groups that are stored or being made."
    )
    capacity_bytes: int | None = Field(
        default=None, ge=1, description="Most bytes of stored groups."
    )
    reference_bytes: int | None = Field(
        default=None,
        ge=0,
        description="In Redis, groups of this size or more are kept as a reference to the output of"
        " the collection, which trainers must be able to read under the same path.",
    )
    batch: int | None = Field(default=None, ge=1, description="Groups of one step of the trainer.")
    staleness: int | None = Field(
        default=None,
        ge=0,
        description="Most steps between a group's weights and those that it trains.",
    )
    long_rollouts: Literal["drop", "keep", "segments"] = Field(
        default="drop",
        description="Groups whose first tokens are staler than that, and whose last are not. drop:"
        " they are dropped. keep: they are used. segments: they are used without the tokens that"
        " are staler, by a trainer that asks read_group for it.",
    )
    over_provision: float = Field(
        default=0,
        ge=0,
        description="Groups that are begun beyond a step, as a share of its batch. They are"
        " stopped when the step has enough, and go on in the next one.",
    )
    on_full: Literal["block", "reject", "drop_oldest"] = Field(
        default="block", description="What a put does when there is no room."
    )
    consume: int = Field(default=1, ge=1, description="How often each group is handed out for use.")
    filters: tuple[FilterName, ...] = Field(
        default=("non_finite",), description="Groups that are dropped when they are put."
    )
    order: Literal["fifo", "freshest", "random"] = Field(
        default="fifo", description="Which come first."
    )
    visibility_s: float = Field(
        default=600,
        gt=0,
        description="After this time without an ack, a group is handed out again.",
    )
    reserve_s: float = Field(
        default=60,
        gt=0,
        description="A reserved place is free again after this time, unless extended.",
    )
    max_deliveries: int = Field(
        default=5,
        ge=1,
        description="A group that was handed out so often without an ack is dropped.",
    )
    remember: int = Field(
        default=100_000,
        ge=1,
        description="Finished groups whose keys are kept, to know duplicates.",
    )

    @field_validator("filters", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(filter(None, value.split(",")))
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _has_a_batch(self) -> Self:
        if self.staleness is not None and self.batch is None:
            raise ValueError("staleness: add batch, the number of groups of one step")
        if self.batch is not None and self.staleness is None:
            what = "how many steps old weights may be; 0 is synchronous"
            raise ValueError(f"batch: add staleness, {what}")
        if self.most_at_once < 1:
            what = f"a step of {self.batch} leaves no room for a group that is used"
            raise ValueError(f"consume: {what} {self.consume} times; raise batch or staleness")
        if self.over_provision and self.staleness is None:
            raise ValueError("over_provision: add batch and staleness, which say what a step needs")
        return self

    @classmethod
    def parse(cls, given: dict[str, Any], where: str = "buffer") -> "BufferPolicy":
        """The policy of some texts or values; ConfigError names what is wrong."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            found = fields.problems(error, cls)
            lines = [": ".join(filter(None, [where, *one.path, one.reason])) for one in found]
            raise ConfigError("\n".join(lines)) from None

    def version_of(self, group: BufferedGroup) -> int | None:
        """The version that decides whether a group is stale."""
        if self.long_rollouts == "drop" or group.version_last is None:
            return group.version_first
        return group.version_last

    def oldest_token(self, version: int) -> int | None:
        """The oldest version of a token that a trainer at this version uses; None: any."""
        if self.long_rollouts != "segments" or self.staleness is None:
            return None
        return version - self.staleness

    @property
    def most_at_once(self) -> int:
        """Groups that there can be before the trainer acknowledges some and tells a version."""
        if self.staleness is None or self.batch is None:
            return self.capacity
        return min(self.capacity, (self.staleness + 1) * self.batch // self.consume)

    def room(self, version: int | None, base: int, acked: int, uses: int) -> int | None:
        """How many groups are missing so that none gets staler than allowed; None: any number.

        `acked` are the uses that were acknowledged since the version `base`, and `uses` those of
        the groups that are stored. At staleness 0 this is the rest of the present step.
        """
        if self.staleness is None or self.batch is None:
            return None
        steps = self.staleness + (base if version is None else version) - base + 1
        return (steps * self.batch - acked - uses) // self.consume

    def num_to_begin(self, room: int | None, reserved: int) -> int | None:
        """How many groups may be begun when so many are missing and begun; None: any number."""
        if room is None or room <= 0 or self.batch is None:
            return room if room is None else 0
        return room + int(self.batch * self.over_provision) - reserved
