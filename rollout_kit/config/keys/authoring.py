"""The keys of the commands for authors of environments."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from .command import Command


class EntrypointConfig(Command):
    """Keys of ng_init_resources_server, ng_test and ng_audit_verifier."""

    entrypoint: str = Field(
        "", description="The server's folder: resources_servers/<name>, in the working folder."
    )


class AuditConfig(EntrypointConfig):
    """ng_audit_verifier: whether a verifier's verdicts can be trusted."""

    asks_policy: ClassVar[bool] = False

    resources_server_name: str | None = Field(
        None, description="The verifier; may be left out where there is only one."
    )
    input_jsonl_fpath: str | None = Field(
        None,
        description="Rows with gold_output or gold_items. Default: data/*.jsonl of its folder.",
    )
    output_fpath: Path | None = Field(None, description="JSON file for all that was found.")
    num_rows: int = Field(20, ge=1, description="Rows that are drawn, at random.")
    seed: int = Field(0, description="Decides which rows are drawn.")
    verify_timeout_s: float = Field(
        30, gt=0, description="Time limit of one verification; what takes longer got no verdict."
    )
    slow_s: float = Field(5, gt=0, description="A verdict that takes longer is flagged.")


class PrepareDataConfig(Command):
    """ng_prepare_data: write the datasets that agents list as files of tasks that their verifiers
    accept."""

    asks_policy: ClassVar[bool] = False

    output_dirpath: Path = Field(
        description="Folder for train.jsonl, validation.jsonl, example.jsonl and summary.json."
    )
    mode: Literal["train_preparation", "example_validation"] | None = Field(
        None, description="Only train and validation, or only example. Default: all."
    )
    should_download: bool = Field(
        True, description="Fetch from Hugging Face what is not at its jsonl_fpath."
    )
    limit: int | None = Field(
        None, ge=0, description="Only the first so many rows of each dataset; null or 0 = all."
    )
    drop_duplicates: bool = Field(False, description="Leave out what was there before.")
