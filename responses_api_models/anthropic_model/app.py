"""Anthropic's Messages API as the model: thinking, tools and prompt caches as Claude has them."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from rollout_kit.serving.batches.anthropic_batches import AnthropicBatches
from rollout_kit.serving.batches.batch_keys import BatchKeys
from rollout_kit.serving.batches.provider import Provider
from rollout_kit.serving.endpoints.addresses import BaseUrl, HeaderValue
from rollout_kit.serving.endpoints.keys import LeadingKeys
from rollout_kit.serving.endpoints.patience import Waited
from rollout_kit.serving.endpoints.rate_limit import HEADER_PREFIX
from rollout_kit.serving.endpoints.requests import RequestForm
from rollout_kit.serving.hosted_model import DELIVERY_PARAMS, EndpointConfig, HostedModel, Request
from rollout_kit.serving.service import OPERATIONAL
from rollout_kit.serving.transport.connection import Headers
from rollout_kit.types import JsonObject

from .caching import Ttl
from .pausing import MOST, go_on, is_paused, join
from .reply import from_message
from .request import MessagesForm
from .thinking import ThinkingType

log = logging.getLogger(__name__)

PATH = "/v1/messages"

PASSED_ON = ("thinking", "output_config", "metadata", "inference_geo", "speed", "container")
"""Fields of a client's request that create params have no name for."""

REQUESTS = "anthropic-ratelimit-requests-"
"""Prefix of the headers with the limit of requests. Those of tokens count no tokens that are read
from a cache, so they would make a pace that is too slow."""


class AnthropicModelConfig(LeadingKeys, BatchKeys, EndpointConfig):
    # pydantic before 2.10 reserves every name that begins with model_
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    anthropic_base_url: BaseUrl = Field(
        "https://api.anthropic.com",
        json_schema_extra=OPERATIONAL,
        description="The endpoint, with or without /v1.",
    )
    anthropic_api_key: HeaderValue = Field(
        "", repr=False, json_schema_extra=OPERATIONAL, description="Sent as x-api-key."
    )
    anthropic_auth_token: HeaderValue = Field(
        "", repr=False, json_schema_extra=OPERATIONAL, description="Sent as a bearer token."
    )
    anthropic_model: str = Field(
        description="Name of the model at the endpoint. A request's model takes precedence."
    )
    anthropic_version: HeaderValue = Field(
        "2023-06-01", json_schema_extra=OPERATIONAL, description="Version of the API."
    )
    anthropic_beta: list[HeaderValue] = Field(
        [], description="Names of beta features to switch on."
    )
    anthropic_default_headers: dict[str, HeaderValue] = Field(
        {},
        repr=False,
        json_schema_extra=OPERATIONAL,
        description="Headers that are added to every request.",
    )
    max_output_tokens: int = Field(
        16_384,
        ge=1,
        description="Token limit of requests whose row sets none. The budget for thinking is added"
        " to it.",
    )
    thinking: ThinkingType | None = Field(
        None,
        description="Form in which a row's reasoning.effort is sent: adaptive, or enabled (with a"
        " budget of tokens). Default: by the version in the model's name.",
    )
    prompt_caching: Literal["auto", "all", "off"] = Field(
        "auto",
        json_schema_extra=OPERATIONAL,
        description="What is written to the prompt cache. auto: tools, system prompt, and the"
        " conversation if another turn is likely. all: always the conversation too."
        " off: nothing.",
    )
    cache_ttl: Ttl = Field(
        "5m",
        json_schema_extra=OPERATIONAL,
        description="How long the cache keeps a prompt: 5m or 1h.",
    )
    service_tier: str | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="auto or standard_only, for rows that do not set it.",
    )
    unsupported_params: list[str] = Field(
        [], description="Parameters that are not sent even if a row sets them."
    )
    stream: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Request streamed answers, so that gateways do not time out during a long"
        " answer.",
    )


class AnthropicModel(HostedModel):
    Config = AnthropicModelConfig
    config: AnthropicModelConfig
    _has_said = False

    def __init__(self, config: AnthropicModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        base, question, query = config.anthropic_base_url.partition("?")
        self._url = f"{base.rstrip('/').removesuffix('/v1')}{PATH}{question}{query}"
        token = config.anthropic_auth_token
        told = {
            "x-api-key": config.anthropic_api_key,
            "authorization": token and f"Bearer {token}",
            "anthropic-version": config.anthropic_version,
            "anthropic-beta": ",".join(config.anthropic_beta),
        }
        self._headers = {name: value for name, value in told.items() if value}
        self._headers |= config.anthropic_default_headers

    def request_form(self) -> RequestForm:
        config = self.config
        tier = {"service_tier": config.service_tier} if config.service_tier else {}
        return MessagesForm(
            "messages",
            {"model": self.model_name(), **tier, **config.extra_body},
            {"stream": True} if config.stream else {},
            not_sent=(*DELIVERY_PARAMS, *config.unsupported_params),
            drops_reasoning=config.drop_input_reasoning_items,
            max_tokens=config.max_output_tokens,
            thinking=config.thinking,
            caching=config.prompt_caching,
            ttl=config.cache_ttl,
            on_default=self._say_limit,
        )

    def _say_limit(self) -> None:
        """Say once which limit a row has that sets none."""
        if not self._has_said:
            self._has_said = True
            log.warning(
                "%s: the row sets no max_output_tokens, and the Messages API wants a limit: %d is"
                " used, this server's max_output_tokens",
                self.name,
                self.config.max_output_tokens,
            )

    def model_name(self) -> str:
        return self.config.anthropic_model

    def endpoint(self) -> str:
        return self.config.anthropic_base_url

    def url(self, model: str) -> str:
        return self._url

    def connect_batches(self) -> Provider:
        return AnthropicBatches(self._url.partition("?")[0].removesuffix(PATH), self.headers)

    async def headers(self) -> Mapping[str, str]:
        return self._headers

    def limit_headers(self, headers: Headers) -> Mapping[str, str]:
        given = headers.starting_with(REQUESTS)
        known = {name.removeprefix(REQUESTS): value for name, value in given.items()}
        if "reset" in known:
            known["reset"] = _seconds_until(known["reset"])
        return {f"{HEADER_PREFIX}{name}-requests": value for name, value in known.items()}

    async def ask(self, asked: Request, timeout_s: float, clock: Waited) -> JsonObject:
        """Send a request once, and once more for each pause of its turn."""
        pieces: list[JsonObject] = []
        sent = asked
        while True:
            received = await self.exchange(sent, self._url, timeout_s, clock)
            if not (received.is_answer and is_paused(received.payload)) or len(pieces) == MOST:
                break
            pieces.append(received.payload)
            sent = go_on(asked, pieces)
        if pieces and received.is_answer:
            received.payload = join([*pieces, received.payload])
        return await self.read(asked, received, clock)

    def read_messages(self, params: JsonObject) -> JsonObject:
        """A request in this API's own words; what only they can say is passed on."""
        own = {name: params[name] for name in PASSED_ON if params.get(name) is not None}
        tools = params.get("tools") or []
        hosted = [tool for tool in tools if isinstance(tool, dict) and "input_schema" not in tool]
        if hosted:
            params = {**params, "tools": [tool for tool in tools if tool not in hosted]}
        made = super().read_messages(params)
        if hosted:
            made["tools"] = [*made.get("tools", ()), *hosted]
        return {**made, **own}

    def response(self, asked: Request, payload: Any) -> JsonObject:
        return from_message(payload, {"model": asked.model, **asked.params}, asked.origin)


def _seconds_until(moment: str) -> str:
    """The seconds until a moment such as 2026-01-01T00:00:30Z, as text; empty if it is none."""
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        return ""
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return f"{max(0.0, (at - datetime.now(UTC)).total_seconds()):.3f}"
