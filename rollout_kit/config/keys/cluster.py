"""Defines the keys of a collection that runs on several processes or machines."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ..shard import Shard
from .command import CommandKeys


class ClusterConfig(CommandKeys):
    """Where the attempts of a collection run."""

    executor: Literal["local", "processes", "ray"] = Field(
        "local",
        description="Where rollouts run. local: in this process; processes: in worker processes on"
        " this machine; ray: in workers on the nodes of a Ray cluster.",
    )
    num_workers: int | None = Field(
        None, ge=1, description="Workers of the executor; null = one for each CPU core."
    )
    ray_worker_cpus: float = Field(
        1.0, ge=0, description="CPUs that Ray reserves for a worker; 0 = none."
    )

    worker_lease_s: float = Field(
        15.0, gt=0, description="A worker that was silent for this long is lost."
    )

    rows: Literal["driver", "shards"] = Field(
        "driver",
        description="Who writes the rollouts of workers. driver: it receives and writes each;"
        " shards: each worker writes its own to the disk that all share, and they go into the"
        " output at the end.",
    )

    shard: Shard | None = Field(
        None,
        description="Collect only this part of the tasks, into a file of its own: 3/10; auto in a"
        " Slurm array, auto/10 in an indexed job of Kubernetes.",
    )

    @model_validator(mode="before")
    @classmethod
    def _name_output(cls, given: Any) -> Any:
        """Each part has its own output: give all of them the same command."""
        if not isinstance(given, dict) or not given.get("shard"):
            return given
        with suppress(ValueError):  # the field says what is wrong
            shard, output = given["shard"], given.get("output_jsonl_fpath")
            if not isinstance(shard, Shard) and output:
                shard = Shard.parse(shard)
                path = shard.path_of(Path(str(output)))
                return {**given, "shard": shard, "output_jsonl_fpath": path}
        return given

    @model_validator(mode="after")
    def _has_workers(self) -> "ClusterConfig":
        if self.num_workers is not None and self.executor == "local":
            raise ValueError("num_workers: add +executor=processes, there are no workers otherwise")
        if self.rows == "shards" and self.executor == "local":
            raise ValueError("rows=shards: add +executor=processes, there are no workers otherwise")
        return self
