"""A deployment of Azure OpenAI as the model, with an API key or a token of Entra ID."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pydantic import Field, model_validator

from rollout_kit.errors import ConfigError, ModelError
from rollout_kit.serving.batches.openai_batches import OpenAIBatches
from rollout_kit.serving.batches.provider import Provider
from rollout_kit.serving.endpoints.addresses import BaseUrl, HeaderValue
from rollout_kit.serving.hosted_model import PATHS, HostedModel, HostedModelConfig
from rollout_kit.serving.service import OPERATIONAL

from .tokens import Tokens, fixed, of_command, of_identity

V1 = (None, "v1", "latest", "preview")
"""API versions in which `model` in the request names the deployment, instead of the path."""

PROOFS = ("api_key", "azure_ad_token", "azure_token_command", "use_azure_identity")


class AzureOpenAIModelConfig(HostedModelConfig):
    azure_endpoint: BaseUrl = Field(
        pattern=r"^[^?]+$",
        json_schema_extra=OPERATIONAL,
        description="The Azure resource, such as https://<name>.openai.azure.com.",
    )
    azure_deployment: str = Field(
        description="Name of the deployment. A request's model takes precedence."
    )
    api_version: str | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="A date such as 2024-10-21 selects the older paths. Default: /openai/v1/.",
    )
    api_key: HeaderValue | None = Field(
        None, repr=False, json_schema_extra=OPERATIONAL, description="A key of the resource."
    )
    azure_ad_token: HeaderValue | None = Field(
        None, repr=False, json_schema_extra=OPERATIONAL, description="A token of Entra ID."
    )
    azure_token_command: str | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="Command that prints a token of Entra ID. It is run again before the token"
        " expires.",
    )
    use_azure_identity: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Get tokens from azure-identity (pip install 'rollout-kit[azure]').",
    )

    @model_validator(mode="after")
    def _check_credentials(self) -> "AzureOpenAIModelConfig":
        given = [name for name in PROOFS if getattr(self, name)]
        if len(given) != 1:
            which = f", not {' and '.join(given)}" if given else ""
            raise ValueError(f"give one of {', '.join(PROOFS)}{which}")
        return self


class AzureOpenAIModel(HostedModel):
    Config = AzureOpenAIModelConfig
    config: AzureOpenAIModelConfig

    def __init__(self, config: AzureOpenAIModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._tokens = _tokens_of(config)
        resource = config.azure_endpoint.rstrip("/").removesuffix("/v1").removesuffix("/openai")
        self._root = f"{resource}/openai"
        self._path = PATHS[config.upstream_api]
        self._query = f"?api-version={config.api_version}" if config.api_version else ""

    async def start(self) -> None:
        await super().start()
        try:
            await self.headers()
        except ModelError as error:
            await self.stop()
            raise ConfigError(f"{self.name}: {error.message}") from error

    def model_name(self) -> str:
        return self.config.azure_deployment

    def endpoint(self) -> str:
        return self.config.azure_endpoint

    def url(self, model: str) -> str:
        if self.config.api_version in V1:
            return f"{self._root}/v1{self._path}{self._query}"
        of_deployment = f"/deployments/{quote(model, safe='')}" if self._is_chat else ""
        return f"{self._root}{of_deployment}{self._path}{self._query}"

    def connect_batches(self) -> Provider:
        is_v1, version = self.config.api_version in V1, self.config.api_version
        base, query = f"{self._root}/v1" if is_v1 else self._root, {}
        if version:
            query["api-version"] = version
        return OpenAIBatches(base, f"/v1{self._path}", self.headers, query=query, name="Azure")

    async def headers(self) -> Mapping[str, str]:
        if self._tokens is None:
            proof = {"api-key": self.config.api_key or ""}
        else:
            proof = {"authorization": f"Bearer {await self._tokens.current()}"}
        return {**proof, **self.config.openai_default_headers}

    async def renew_headers(self, headers: Mapping[str, str]) -> bool:
        shown = headers.get("authorization", "").removeprefix("Bearer ")
        return self._tokens is not None and await self._tokens.renew(shown)

    def secrets(self) -> frozenset[str]:
        return super().secrets().union(self._tokens.known if self._tokens else ())


def _tokens_of(config: AzureOpenAIModelConfig) -> Tokens | None:
    if config.azure_ad_token:
        return Tokens(fixed(config.azure_ad_token))
    if config.azure_token_command:
        return Tokens(of_command(config.azure_token_command))
    return Tokens(of_identity) if config.use_azure_identity else None
