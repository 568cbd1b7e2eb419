"""The keys of a `vllm_model`: vLLM's options, and those of this server."""

import shutil
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import AliasChoices, ConfigDict, Field, field_validator, model_validator

from rollout_kit.config.fields import keys
from rollout_kit.rl.weights.sync import WeightSync
from rollout_kit.serving.endpoints.addresses import check_base_url
from rollout_kit.serving.endpoints.chat import ReasoningField
from rollout_kit.serving.service import OPERATIONAL
from rollout_kit.types import JsonObject

from . import installed
from .options import VllmOptions, further

READY_S = 1800.0
"""A model of 70 billion parameters takes a quarter of an hour to load from a slow disk."""


class VllmModelConfig(VllmOptions):  # type: ignore[misc, valid-type]
    # pydantic before 2.10 reserves every name that begins with model_
    model_config = ConfigDict(protected_namespaces=())

    model: str = Field(
        validation_alias=AliasChoices("model_name", "model"), description="Model to serve."
    )
    base_url: str | list[str] | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="URLs of running vLLM servers. No vLLM is started then.",
    )
    api_key: str | None = Field(
        None,
        repr=False,
        json_schema_extra=OPERATIONAL,
        description="API key that the vLLM servers require.",
    )
    num_replicas: int = Field(
        1, ge=1, json_schema_extra=OPERATIONAL, description="Number of vLLM servers to start."
    )
    vllm_executable: str = Field(
        "vllm",
        json_schema_extra=OPERATIONAL,
        description="Command that starts vLLM. It may be in another Python environment.",
    )
    extra_args: list[str] | JsonObject = Field(
        [], description="Additional arguments of `vllm serve`, which are not checked."
    )
    lora_modules: Any = Field(
        None, description="LoRA adapters: name → path; a request's `model` names one."
    )
    ready_timeout_s: float = Field(
        READY_S, gt=0, json_schema_extra=OPERATIONAL, description="Most time for vLLM to load."
    )
    max_restarts: int = Field(
        5,
        ge=0,
        json_schema_extra=OPERATIONAL,
        description="Failed starts in a row to give up.",
    )
    return_token_ids: bool = Field(
        False, description="Token ids and log-probs on the last output item of every turn."
    )
    resume_turns: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Continue from the tokens of a stopped turn when it is asked for again. For"
        " turns with token ids.",
    )
    chat_template_kwargs: JsonObject = Field(
        {}, description="For the chat template, such as enable_thinking; rows may override them."
    )
    upstream_api: Literal["chat_completions", "responses"] = Field(
        "chat_completions", description="API of vLLM to use; responses are passed on unchanged."
    )
    sampling_overrides: JsonObject = Field(
        {}, description="Parameters of every request, in place of what a row or an agent sets."
    )
    continue_final_assistant_message: bool = Field(
        False,
        description="Where the input ends with an assistant's message, continue that message.",
    )
    preserve_reasoning_in_assistant_content: bool = Field(
        False,
        description="Send the reasoning of earlier turns as <think>…</think> in their text.",
    )
    reasoning_field: ReasoningField = Field(
        "reasoning",
        description="Field of an assistant message that gives earlier reasoning back:"
        " reasoning_content for vLLM before 0.16.",
    )
    use_completions_api: bool = Field(
        False,
        description="Send every input as a raw prompt: one user message, with or without a system"
        " message before it.",
    )

    weight_sync: WeightSync | None = Field(None, description="Load new weights from a trainer.")
    rl: bool = Field(
        False,
        description="Set what a training loop needs: token ids with the log-probs of the sampled"
        " distribution, and vLLM's routes that change weights. weight_sync implies it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _takes_what_is_installed(cls, given: Any) -> Any:
        """Move options that only the installed vLLM knows into `extra_args`."""
        if not isinstance(given, dict) or given.get("base_url"):
            return given
        unknown = given.keys() - keys(cls).keys()
        executable = shutil.which(str(Path(given.get("vllm_executable", "vllm")).expanduser()))
        if not unknown or not executable:
            return given
        found = installed.options(executable) or {}
        own = {name: given[name] for name in sorted(unknown & found.keys())}
        if not own:
            return given
        rest = {name: value for name, value in given.items() if name not in own}
        extra = given.get("extra_args") or {}
        more = {**extra, **own} if isinstance(extra, dict) else [*extra, *further(own, found)]
        return {**rest, "extra_args": more}

    @model_validator(mode="after")
    def _follows(self) -> Self:
        self.rl = self.rl or self.weight_sync is not None
        if self.rl and "return_token_ids" not in self.model_fields_set:
            self.return_token_ids = self.upstream_api == "chat_completions"
        if self.weight_sync and self.lora_modules:
            raise ValueError("lora_modules cannot be served beside weight_sync")
        return self

    @model_validator(mode="after")
    def _tells_token_ids(self) -> Self:
        if self.return_token_ids and self.upstream_api == "responses":
            raise ValueError("return_token_ids: vLLM's /v1/responses returns none")
        return self

    @model_validator(mode="after")
    def _asks_one_api(self) -> Self:
        of_chats = self.continue_final_assistant_message
        if self.use_completions_api and (of_chats or self.upstream_api == "responses"):
            other = "continue_final_assistant_message" if of_chats else "upstream_api: responses"
            raise ValueError(f"use_completions_api: a raw prompt is no chat: leave out {other}")
        if of_chats and self.upstream_api == "responses":
            raise ValueError(
                "continue_final_assistant_message: needs upstream_api: chat_completions"
            )
        return self

    @field_validator("sampling_overrides", mode="before")
    @classmethod
    def _null_is_none(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("base_url")
    @classmethod
    def _are_urls(cls, value: Any) -> Any:
        urls = [value] if isinstance(value, str) else value or []
        if value is not None and not urls:
            raise ValueError("name at least one URL, or leave it out to start vLLM")
        checked = [check_base_url(url) for url in urls]
        if any("?" in url for url in checked):
            raise ValueError("has a query, which only openai_model sends")
        return checked[0] if isinstance(value, str) else checked or None

    @property
    def urls(self) -> list[str]:
        """URLs of vLLM servers that run already."""
        return [self.base_url] if isinstance(self.base_url, str) else list(self.base_url or ())

    @property
    def served_name(self) -> str:
        """The model's name in vLLM."""
        names = self.get("served_model_name")
        first = names[0] if isinstance(names, list) and names else names
        return str(first or self.model)

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        product = 1
        for name in sizes:
            product *= self.get(name) or 1
        return product
