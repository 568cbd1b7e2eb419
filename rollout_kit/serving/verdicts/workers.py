"""The keys of a verifier that runs in worker processes."""

from pydantic import ConfigDict, Field

from ..resources_server import ResourcesServerConfig
from ..service import OPERATIONAL


class VerifyWorkersConfig(ResourcesServerConfig):
    """Keys of a server whose verifier runs in worker processes."""

    model_config = ConfigDict(extra="forbid")

    verify_timeout_s: float = Field(
        5.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="CPU seconds of a worker for one verdict; an answer that needs more scores 0.",
    )
    verify_wall_timeout_s: float = Field(
        60.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Seconds on the clock for one verdict. A later one is an error, which leaves"
        " the rollout unverified: a busy machine decides no verdict.",
    )
    num_verify_workers: int = Field(
        2, ge=1, json_schema_extra=OPERATIONAL, description="Most worker processes of the verifier."
    )
