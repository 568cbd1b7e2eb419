"""Defines the keys of ng_plan_vllm."""

from typing import Literal

from pydantic import Field

from .command import Command


class PlanVllmConfig(Command):
    """ng_plan_vllm: show whether a model fits on GPUs, and with how many sequences."""

    model_name: str = Field(
        description="Folder with config.json, a model in the Hugging Face cache, or a known name."
    )
    gpus: str | None = Field(
        None,
        description="4xH100, 2x80GB, or a number of this machine's GPUs. Default: all of them.",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="Type of the weights; auto = the checkpoint's."
    )
    quantization: Literal["fp8", "int4"] | None = Field(
        None, description="Quantization of weights that are not quantized in the checkpoint."
    )
    kv_cache_dtype: Literal["auto", "fp8"] = Field("auto", description="Type of the KV cache.")
    max_model_len: int | None = Field(
        None, ge=1, description="Longest sequence in tokens. Default: the model's, at most 8192."
    )
    sequence_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens of an average sequence with its prompt. Default: half the longest.",
    )
    gpu_memory_utilization: float = Field(
        0.92, gt=0, le=1, description="Share of each GPU's memory that vLLM may use."
    )
