"""Defines the keys of the tools that follow a run."""

from typing import Literal

from pydantic import Field

from .command import CommandKeys

NUM_SAMPLES = 100
"""Rollouts of a table."""


class WandbConfig(CommandKeys):
    """Weights & Biases. `project` switches it on; most keys are those of `wandb.init`."""

    project: str | None = Field(default=None, description="Send figures, a table and files to W&B.")
    entity: str | None = Field(default=None, description="User or team of the project.")
    name: str | None = Field(default=None, description="Name of the run.")
    group: str | None = Field(default=None, description="Group of the run.")
    job_type: str | None = Field(default=None, description="Kind of the run.")
    tags: list[str] = Field(default=[], description="Tags of the run.")
    notes: str | None = Field(default=None, description="A note on the run.")
    mode: Literal["online", "offline"] | None = Field(
        default=None, description="offline: keep the run on disk; `wandb sync` sends it."
    )
    id: str | None = Field(default=None, description="Id of the run, to continue one with resume.")
    resume: Literal["allow", "must", "never"] | None = Field(
        default=None, description="Whether a run of this id is continued."
    )
    dir: str | None = Field(default=None, description="Folder of W&B's own files.")
    samples: int = Field(
        default=NUM_SAMPLES,
        ge=0,
        description="Number of rollouts in the table, drawn at random; 0 = none.",
    )
    files: bool = Field(default=True, description="Send the output's files at the end of the run.")


class MlflowConfig(CommandKeys):
    """MLflow. `experiment` switches it on."""

    experiment: str | None = Field(
        default=None, description="Send figures, a table and files to MLflow."
    )
    tracking_uri: str | None = Field(
        default=None, description="Address of the server. Default: MLFLOW_TRACKING_URI."
    )
    run_name: str | None = Field(default=None, description="Name of the run.")
    tags: dict[str, str] = Field(default={}, description="Tags of the run.")
    samples: int = Field(
        default=NUM_SAMPLES,
        ge=0,
        description="Number of rollouts in the table, drawn at random; 0 = none.",
    )
    files: bool = Field(default=True, description="Send the output's files at the end of the run.")


class OtelConfig(CommandKeys):
    """OpenTelemetry. `endpoint` switches it on."""

    endpoint: str | None = Field(
        default=None, description="Send a trace of each rollout to this OTLP receiver, over HTTP."
    )
    headers: dict[str, str] = Field(
        default={}, description="Headers for the receiver; they are secret."
    )
    content: bool = Field(default=False, description="Send prompts, answers and tool calls, too.")
    service: str = Field(default="rollout_kit", description="The `service.name` of the traces.")


class TrackersConfig(CommandKeys):
    """Keys of the commands whose runs can be followed."""

    wandb: WandbConfig = Field(default_factory=WandbConfig, description="Weights & Biases.")
    mlflow: MlflowConfig = Field(default_factory=MlflowConfig, description="MLflow.")
    otel: OtelConfig = Field(default_factory=OtelConfig, description="OpenTelemetry.")
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Serve /metrics for Prometheus on this port of this machine; 0 = a free one.",
    )
    tracker_wait_s: float = Field(
        60.0,
        ge=0,
        description="At the end, wait at most this many seconds until trackers have everything.",
    )
