"""Defines the keys of the commands for authors of environments."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from .command import Command
from .servers import CheckoutConfig

FOLDER = "Folder of the server: resources_servers/<name>, in the working folder."


class EntrypointConfig(Command):
    """Keys of ng_init_resources_server and ng_test."""

    entrypoint: str = Field(description=FOLDER)


class AuditConfig(Command):
    """ng_audit_verifier: check that a verifier's verdicts can be trusted."""

    asks_policy: ClassVar[bool] = False

    entrypoint: str = Field("", description=FOLDER)
    resources_server_name: str | None = Field(
        None, description="Verifier to audit. Optional if there is only one."
    )
    input_jsonl_fpath: str | None = Field(
        None,
        description="Rows with gold_output or gold_items. Default: data/*.jsonl of its folder.",
    )
    output_fpath: Path | None = Field(None, description="JSON file for all findings.")
    num_rows: int = Field(20, ge=1, description="Number of rows to draw at random.")
    seed: int = Field(0, description="Seed for drawing the rows.")
    verify_timeout_s: float = Field(
        30, gt=0, description="Time limit of one verification; a slower one counts as no verdict."
    )
    slow_s: float = Field(5, gt=0, description="Flag verdicts that take longer than this.")


class ListConfig(Command, CheckoutConfig):
    """ng_list: show the servers, agents and benchmarks that can be used."""

    has_servers: ClassVar[bool] = False

    kind: Literal["environment", "benchmark", "agent", "model"] | None = Field(
        None, description="Only these."
    )
    check: bool = Field(
        False, description="Check every YAML file of the checkout of NeMo Gym instead."
    )


class PrepareDataConfig(Command, CheckoutConfig):
    """ng_prepare_data: write the agents' datasets as files of tasks that their verifiers accept."""

    asks_policy: ClassVar[bool] = False

    output_dirpath: Path | None = Field(
        None,
        description="Folder for train.jsonl, validation.jsonl, example.jsonl and summary.json."
        " Optional with benchmark.",
    )
    benchmark: str | None = Field(
        None,
        description="Benchmark of a checkout of NeMo Gym: run the script that writes its rows.",
    )
    mode: Literal["train_preparation", "example_validation"] | None = Field(
        None, description="Write only train and validation, or only example. Default: all."
    )
    should_download: bool = Field(
        True,
        description="Download datasets that are missing at their jsonl_fpath from Hugging Face.",
    )
    limit: int | None = Field(
        None, ge=0, description="Use only this many rows of each dataset; null or 0 = all."
    )
    drop_duplicates: bool = Field(False, description="Drop repeated rows.")
