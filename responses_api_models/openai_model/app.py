"""Any OpenAI-compatible endpoint as the model, with or without an API key."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from pydantic import Field

from rollout_kit.serving.batches.openai_batches import OpenAIBatches
from rollout_kit.serving.batches.provider import Provider
from rollout_kit.serving.endpoints.addresses import BaseUrl, HeaderValue
from rollout_kit.serving.hosted_model import PATHS, HostedModel, HostedModelConfig
from rollout_kit.serving.service import OPERATIONAL


class OpenAIModelConfig(HostedModelConfig):
    openai_base_url: BaseUrl = Field(
        json_schema_extra=OPERATIONAL, description="URL of the endpoint, which usually ends in /v1."
    )
    openai_api_key: HeaderValue = Field(
        "", repr=False, json_schema_extra=OPERATIONAL, description="Sent as a bearer token."
    )
    openai_organization: str | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="Organization that is billed, if the key belongs to several.",
    )
    openai_project: str | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="Project that is billed, if the key belongs to several.",
    )
    openai_model: str = Field(
        description="Name of the model at the endpoint. A request's model takes precedence."
    )


class OpenAIModel(HostedModel):
    Config = OpenAIModelConfig
    config: OpenAIModelConfig

    def __init__(self, config: OpenAIModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        base, question, query = config.openai_base_url.partition("?")
        self._url = f"{base.rstrip('/')}{PATHS[config.upstream_api]}{question}{query}"
        told = {
            "authorization": config.openai_api_key and f"Bearer {config.openai_api_key}",
            "openai-organization": config.openai_organization,
            "openai-project": config.openai_project,
        }
        self._headers = {name: value for name, value in told.items() if value}
        self._headers |= config.openai_default_headers

    def model_name(self) -> str:
        return self.config.openai_model

    def endpoint(self) -> str:
        return self.config.openai_base_url

    def url(self, model: str) -> str:
        return self._url

    def connect_batches(self) -> Provider:
        base, _, query = self.config.openai_base_url.partition("?")
        path = f"/v1{PATHS[self.config.upstream_api]}"
        return OpenAIBatches(base, path, self.headers, query=dict(parse_qsl(query)))

    async def headers(self) -> Mapping[str, str]:
        return self._headers
