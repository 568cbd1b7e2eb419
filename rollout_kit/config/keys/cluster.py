"""Defines the keys of a collection that runs on several processes or machines."""

from typing import Literal

from pydantic import BaseModel, Field, model_validator


class ClusterConfig(BaseModel):
    """Where the attempts of a collection run."""

    executor: Literal["local", "processes"] = Field(
        "local",
        description="Where rollouts run. local: in this process; processes: in worker processes on"
        " this machine.",
    )
    num_workers: int | None = Field(
        None, ge=1, description="Workers of the executor; null = one for each CPU core."
    )

    worker_lease_s: float = Field(
        15.0, gt=0, description="A worker that was silent for this long is lost."
    )

    @model_validator(mode="after")
    def _has_workers(self) -> "ClusterConfig":
        if self.num_workers is not None and self.executor == "local":
            raise ValueError("num_workers: add +executor=processes, there are no workers otherwise")
        return self
