"""The keys of a local model."""

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from rollout_kit.rl.weights.sync import WeightSync
from rollout_kit.serving.model import ModelConfig
from rollout_kit.serving.service import OPERATIONAL


class LocalModelConfig(ModelConfig):
    # pydantic before 2.10 reserves every name that begins with model_
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model_path: str | None = Field(
        None,
        description="Folder of a Qwen3 checkpoint in the Hugging Face layout. Empty: the tiny"
        " model.",
    )
    lora_modules: dict[str, str] = Field(
        {},
        description="LoRA adapters, as a mapping of names to folders. A request's `model` selects"
        " one.",
    )
    model_name: str = Field("tiny", description="Name of the model in responses.")
    max_output_tokens: int = Field(256, ge=1, description="Token limit of requests that set none.")
    temperature: float = Field(1.0, ge=0, description="Temperature of requests that set none.")
    return_token_ids: bool = Field(
        False, description="Return token ids and log-probs with every response."
    )
    resume_turns: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="If a turn was stopped and is requested again, continue from its tokens.",
    )
    num_threads: int = Field(
        1,
        ge=1,
        json_schema_extra=OPERATIONAL,
        description="Number of responses that are generated at the same time.",
    )
    weight_sync: WeightSync | None = Field(None, description="Load new weights from a trainer.")

    @model_validator(mode="after")
    def _can_follow(self) -> Self:
        if self.weight_sync and self.weight_sync.mode == "external":
            raise ValueError("weight_sync: local_model knows checkpoint_dir and lora_dir")
        if self.weight_sync and self.lora_modules:
            raise ValueError("lora_modules cannot be served beside weight_sync")
        return self
