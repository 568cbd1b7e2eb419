"""Defines the keys of ng_merge_lora."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from .command import Command


class MergeLoraConfig(Command):
    """ng_merge_lora: write a model with a LoRA adapter merged in."""

    base: str = Field(
        description="Folder of the model that the adapter was trained on, or its name in the"
        " Hugging Face cache."
    )
    adapter: Path = Field(description="Folder of the adapter, as PEFT saves it.")
    output: Path = Field(description="Folder to write.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Type of the merged weights; auto = the base's."
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        description="Largest difference in log-probs from base and adapter. Default: 0.001 in"
        " float32, else 0.1.",
    )
    any_base: bool = Field(False, description="Merge also where the adapter names another base.")
