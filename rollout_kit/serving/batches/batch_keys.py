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
        description="Gather the requests of rollouts into batches, at the lower price of batches.",
    )
    batch_dir: Path | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="Folder in which batches are kept. Default: the output's folder,"
        " <stem>.d/batches/<server>; for an ng_run batches/<server>.",
    )
    batch_size: int | None = Field(
        None,
        ge=1,
        json_schema_extra=OPERATIONAL,
        description="Most requests of a batch. Default: the provider's limit.",
    )
    batch_gather_s: float = Field(
        10.0,
        ge=0,
        json_schema_extra=OPERATIONAL,
        description="Submit a batch when no request has come for this long, or after ten times as"
        " long.",
    )
    batch_poll_s: float = Field(
        30.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Ask the provider this often whether a batch has ended.",
    )
    batch_max_wait_s: float = Field(
        DAY_S,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="End a batch that takes longer. Requests that wait for longer fail, unless"
        " there is a batch_fallback.",
    )
    batch_fallback: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Ask the endpoint without a batch, at its normal price, for what a batch has"
        " not answered.",
    )

    cheapest: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Let +cheapest=true choose how each request is sent: in a batch, by the service"
        " tier flex, or at the standard price, repeats of a task after its first rollout.",
    )
    batch_files: Path | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="Write batches into this folder as files for vLLM's run-batch, and wait there"
        " for its output, in place of a provider's batches.",
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
