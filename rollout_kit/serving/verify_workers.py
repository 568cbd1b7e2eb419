"""Verifiers that run in worker processes: their keys, and the check of a row's patterns."""

from collections.abc import Awaitable
from typing import Any

from pydantic import ConfigDict, Field

from ..errors import TaskError
from .resources_server import ResourcesServerConfig
from .service import OPERATIONAL
from .workers.pool import WorkerError


class VerifyWorkersConfig(ResourcesServerConfig):
    """Keys of a server whose verifier runs in worker processes.

    Example:

        class Config(rk.VerifyWorkersConfig):
            tolerance: float = 1e-6
    """

    model_config = ConfigDict(extra="forbid")

    verify_timeout_s: float = Field(
        default=5.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="CPU seconds of a worker for one verdict. An answer that needs more gets 0.",
    )
    verify_wall_timeout_s: float = Field(
        default=60.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Seconds of real time for one verdict. If there is no verdict by then, the"
        " rollout stays unverified, so that a busy machine never decides a verdict.",
    )
    num_verify_workers: int = Field(
        default=2,
        ge=1,
        json_schema_extra=OPERATIONAL,
        description="Maximum number of worker processes of the verifier.",
    )


async def check_patterns(call: Awaitable[Any]) -> None:
    """Await a worker's call with the patterns of a row and an empty text. TaskError if the function
    raised ValueError, or if compiling them takes too much time or memory."""
    try:
        await call
    except WorkerError as error:
        if error.kind != "ValueError":
            raise
        raise TaskError(f"the verifier cannot take this row: {error.message}") from None
    except TimeoutError as error:
        raise TaskError(
            f"the verifier cannot take this row: compiling its patterns takes too much: {error}"
        ) from None
