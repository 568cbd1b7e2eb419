"""The keys of model servers that ask an endpoint."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...types import JsonObject
from ..batches.batch_keys import BatchKeys
from ..model import ModelConfig
from ..service import OPERATIONAL
from ..transport.http import MAX_REPLY_MB
from .addresses import HeaderValue, NetworkConfig
from .chat import MaxTokensField


class EndpointConfig(NetworkConfig, ModelConfig):
    """Keys of every server that asks an endpoint."""

    extra_body: JsonObject = Field({}, description="Request parameters. A row takes precedence.")
    drop_input_reasoning_items: bool = Field(
        False, description="Send earlier turns to the model without their reasoning items."
    )
    request_timeout_s: float = Field(
        600.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Time limit of a request, including all tries and pauses. The wait for a rate"
        " limit and the time in which a streamed answer arrives do not count.",
    )
    max_reply_mb: float = Field(
        MAX_REPLY_MB,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Largest reply of the endpoint in megabytes, decompressed.",
    )
    max_tries: int = Field(
        4,
        ge=1,
        json_schema_extra=OPERATIONAL,
        description="Number of tries for a request that fails with 408, 409, 425, 429, 5xx or a"
        " lost connection.",
    )


class LeadingKeys(BaseModel):
    """Key of servers whose endpoint caches prompts."""

    lead_repeats: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="The first rollout of a task sends its request alone. When its answer begins,"
        " the repeats follow, and pay only for a cached prompt.",
    )


class HostedModelConfig(LeadingKeys, BatchKeys, EndpointConfig):
    """Keys of every server that asks a hosted endpoint."""

    # pydantic before 2.10 reserves every name that begins with model_
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    openai_default_headers: dict[str, HeaderValue] = Field(
        {},
        repr=False,
        json_schema_extra=OPERATIONAL,
        description="Headers that are added to every request.",
    )
    service_tier: str | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="auto, default, flex, priority, fast, ultrafast or scale, for rows that do not"
        " set it.",
    )
    unsupported_params: list[str] = Field(
        [],
        description="Names of request parameters that are not sent, because the endpoint rejects"
        " them.",
    )
    upstream_api: Literal["responses", "chat_completions"] = Field(
        "responses", description="The API of the endpoint."
    )
    max_tokens_field: MaxTokensField = Field(
        "max_completion_tokens",
        description="Name of the token limit in the endpoint's Chat Completions.",
    )
    stream: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Request streamed answers, so that gateways do not time out during a long"
        " answer.",
    )
    use_previous_response_id: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Send only the new items of a turn, and the id of the previous response. The"
        " endpoint must store responses.",
    )

    @model_validator(mode="after")
    def _can_continue(self) -> Self:
        if self.use_previous_response_id and self.upstream_api != "responses":
            raise ValueError(
                "use_previous_response_id: an endpoint of Chat Completions stores no responses;"
                " leave it out, or set upstream_api: responses"
            )
        return self
