"""What a model given as text means: a provider and its model, or the URL of an endpoint.

The one place that turns `"openai/gpt-4o-mini"` and `"http://127.0.0.1:8000/v1"` into the server of
a configuration, under any name: that of the policy, or of a judge.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import orjson
import yaml

from ..config.instance_keys import is_url
from ..config.instances import MODELS, POLICY
from ..errors import ConfigError, PeerError
from ..serving import registry
from ..serving.endpoints.addresses import check_base_url
from ..serving.endpoints.refusals import VERSION
from ..serving.transport.http import HttpClient
from ..serving.transport.network import read_network
from ..types import JsonObject

ASK_S = 10.0
"""Seconds for an endpoint to list its models."""

POLICY_NAME = "policy_model_name"
"""In the YAML of a provider: the model of its server."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model behind an OpenAI-compatible endpoint, such as a running vLLM.

    `url` most often ends in `/v1`; `name` is what the endpoint calls the model. Without a name, the
    endpoint is asked for the only model that it has. `api_key` is sent as a bearer token.
    `upstream_api` is what the endpoint speaks. `settings` are further keys of `openai_model`, for
    example `{"max_concurrent_requests": 32}`. A wrong setting is a ConfigError when the servers
    start.

    Example:

        model = rk.Endpoint("http://127.0.0.1:8000/v1", "Qwen/Qwen3-4B")
        run = rk.collect("tasks.jsonl", model=model, environment="math_with_verify")
    """

    url: str
    name: str = ""
    api_key: str = field(default="", repr=False)
    upstream_api: Literal["responses", "chat_completions"] = "chat_completions"
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def block(self) -> JsonObject:
        """Its server, as in YAML."""
        settings: JsonObject = {
            "openai_base_url": self.url,
            "openai_model": self.name,
            "openai_api_key": self.api_key,
            "upstream_api": self.upstream_api,
            **self.settings,
        }
        return {MODELS: {"openai_model": settings}}


class ModelSource(NamedTuple):
    """Where the server of a model comes from: at most one of the two is not empty."""

    files: Mapping[str, JsonObject]
    """Path of a provider's YAML → its content, to merge below everything else."""
    values: JsonObject
    """A block to merge above everything else."""


def find_model(given: str | Endpoint, server: str = POLICY, argument: str = "model") -> ModelSource:
    """The server `server` for a model: an endpoint that has its name, or a provider and its model,
    such as `openai/gpt-4o-mini`. ConfigError, beginning with `argument`, for anything else."""
    if isinstance(given, Endpoint):
        return ModelSource({}, {server: given.block()})
    provider, slash, name = given.partition("/")
    if slash and name and provider:
        for implementation in (f"{provider}_model", "openai_model"):
            path = f"{MODELS}/{implementation}/configs/{provider}.yaml"
            if found := registry.resolve_path(path):
                content = yaml.safe_load(found.read_text("utf-8"))
                content.pop(POLICY_NAME)
                [(kind, settings)] = content.pop(POLICY)[MODELS].items()
                named = {
                    key: name if value == f"${{{POLICY_NAME}}}" else value
                    for key, value in settings.items()
                }
                return ModelSource({str(found): {**content, server: {MODELS: {kind: named}}}}, {})
    raise ConfigError(
        f"{argument}: '{given}' is no provider/model, such as openai/gpt-4o-mini, no URL of an"
        " endpoint, such as http://127.0.0.1:8000/v1, and no .yaml; a running server is named with"
        " its servers too"
    )


async def ask_name(given: str | Endpoint, argument: str = "model") -> str | Endpoint:
    """The same model; the URL of an endpoint, and an endpoint without a name, as the endpoint with
    the name of its only model. A missing `/v1` is added if the endpoint answers there alone.
    ConfigError if it has several models, or does not list them."""
    endpoint = Endpoint(given) if isinstance(given, str) and is_url(given) else given
    if isinstance(endpoint, str) or endpoint.name:
        return endpoint
    try:
        url = check_base_url(endpoint.url)
    except ValueError as error:
        raise ConfigError(f"{argument}: {endpoint.url} {error}") from None
    urls = [url] if VERSION.search(urlsplit(url).path) else [url, f"{url.rstrip('/')}/v1"]
    http, reasons = HttpClient(network=read_network()), dict[str, str]()
    try:
        for url in urls:
            names, reasons[url] = await _list_models(http, url, endpoint.api_key)
            if len(names) == 1:
                return replace(endpoint, url=url, name=names[0])
            if names:
                raise ConfigError(
                    f"{argument}: {url} has {len(names)} models: give one of them, as in"
                    f" Endpoint('{url}', '{names[0]}'); there are: {', '.join(names)}"
                )
    finally:
        await http.close()
    why = "; ".join(f"{url}/models: {reason}" for url, reason in reasons.items())
    raise ConfigError(
        f"{argument}: the endpoint does not list its models ({why}): give the model too, as in"
        f" Endpoint('{urls[-1]}', 'Qwen/Qwen3-4B')"
    )


async def _list_models(http: HttpClient, url: str, api_key: str) -> tuple[list[str], str]:
    """The names of an endpoint's models, or why they are not known."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        reply = await http.get(f"{url.rstrip('/')}/models", headers=headers, timeout_s=ASK_S)
    except PeerError as error:
        return [], error.message
    if reply.status != 200:
        return [], f"status {reply.status}"
    try:
        return [str(each["id"]) for each in orjson.loads(reply.raw)["data"]], "no models"
    except (ValueError, KeyError, TypeError):
        return [], "no list of models"
