"""Keys of a model server about batches."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from ..model import ModelConfig
from ..service import OPERATIONAL
from .desk import BatchTerms

DAY_S = 86_400.0


class BatchKeys(ModelConfig):
    """Keys of every server whose endpoint may answer in batches."""

    batch: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Gather the requests of rollouts into batches, which cost less.",
    )
    batch_dir: Path | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="Folder for the files of batches. Default: <stem>.d/batches/<server> of the"
        " output, or batches/<server> with ng_run.",
    )
    batch_size: int | None = Field(
        None,
        ge=1,
        json_schema_extra=OPERATIONAL,
        description="Maximum number of requests in a batch. Default: the provider's limit.",
    )
    batch_gather_s: float = Field(
        10.0,
        ge=0,
        json_schema_extra=OPERATIONAL,
        description="Submit a batch when no new request has come for this many seconds, and at the"
        " latest after ten times this time.",
    )
    batch_poll_s: float = Field(
        30.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Seconds between two questions to the provider whether a batch has ended.",
    )
    batch_max_wait_s: float = Field(
        DAY_S,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Cancel a batch after this many seconds. Requests that have waited longer fail,"
        " unless batch_fallback is set.",
    )
    batch_fallback: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Send requests that a batch has not answered without a batch, at the normal"
        " price.",
    )

    cheapest: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Let +cheapest=true choose how each request is sent: in a batch, with the"
        " service tier flex, or at the standard price with repeats after a task's first"
        " rollout.",
    )
    batch_files: Path | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="Folder for vLLM's run-batch, instead of a provider's batches. Batches are"
        " written there as files, and the output is read from there.",
    )

    @model_validator(mode="after")
    def _fits_batches(self) -> Self:
        if not self.batch:
            return self
        for name in ("stream", "service_tier"):
            if getattr(self, name, None):
                raise ValueError(f"{name} means nothing in a batch: leave it out, or batch")
        return self

    def batch_terms(self, server: str) -> BatchTerms:
        """The same for the server of that name."""
        return BatchTerms(
            folder=self.batch_dir or Path("batches") / server,
            size=self.batch_size,
            gather_s=self.batch_gather_s,
            poll_s=self.batch_poll_s,
            max_wait_s=self.batch_max_wait_s,
            has_fallback=self.batch_fallback,
            max_tries=getattr(self, "max_tries", 1),
        )
