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
        None, description="Qwen3 checkpoint folder, Hugging Face layout; empty: the shipped one."
    )
    lora_modules: dict[str, str] = Field(
        {}, description="LoRA adapters: name → folder; a request's `model` names one."
    )
    model_name: str = Field("tiny", description="The name that responses give the model.")
    max_output_tokens: int = Field(256, ge=1, description="Where the create params name no limit.")
    temperature: float = Field(1.0, ge=0, description="Where the create params name none.")
    return_token_ids: bool = Field(
        False, description="Give token ids and log-probs without being asked."
    )
    resume_turns: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Continue from the tokens of a stopped turn when it is asked for again.",
    )
    num_threads: int = Field(
        1, ge=1, json_schema_extra=OPERATIONAL, description="Responses generated at a time."
    )
    weight_sync: WeightSync | None = Field(None, description="Follow the weights of a trainer.")

    @model_validator(mode="after")
    def _can_follow(self) -> Self:
        if self.weight_sync and self.weight_sync.mode == "external":
            raise ValueError("weight_sync: local_model knows checkpoint_dir and lora_dir")
        if self.weight_sync and self.lora_modules:
            raise ValueError("lora_modules cannot be served beside weight_sync")
        return self
