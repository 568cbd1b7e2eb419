"""Several models that a program names, each as a server with a name: judges, for example."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..config.instance_keys import is_url
from ..config.instances import POLICY
from ..errors import ConfigError
from ..serving.functions import FunctionModel, name_of
from ..serving.given_server import GivenServer
from ..serving.model import Model
from ..serving.service import Service
from .given import YAML, Modelled, ServerBlocks
from .model_names import Endpoint, find_model

NAME = re.compile(r"\w[\w-]*")

Models = Modelled | Sequence[Modelled] | Mapping[str, Modelled]
"""One model, several, or several by name."""


def name_models(given: Models) -> dict[str, Modelled]:
    """The models by name: the name that is given, or one made of the model's. ConfigError without
    any model."""
    if isinstance(given, Mapping):
        named = dict(given)
        if wrong := next((name for name in named if not NAME.fullmatch(name)), None):
            raise ConfigError(f"models: '{wrong}': a name has letters, digits, - and _ alone")
    else:
        several = given if isinstance(given, list | tuple) else [given]
        named = {}
        for model in several:
            name, number = short_name(model), 1
            while name in named or name == POLICY:
                number += 1
                name = f"{short_name(model)}_{number}"
            named[name] = model
    if not named:
        raise ConfigError("models: none is named, such as 'openai/gpt-5-mini'")
    return named


def short_name(model: Any) -> str:
    """A name for the server of a model: `gpt_5_mini` for `openai/gpt-5-mini`."""
    url = model.url if isinstance(model, Endpoint) else model
    if isinstance(model, Endpoint) and model.name:
        text = model.name
    elif isinstance(url, str):
        text = urlsplit(url).netloc if is_url(url) else url
    elif isinstance(model, Service):
        text = model.name or type(model).__name__
    else:
        text = name_of(model) if callable(model) else type(model).__name__
    return re.sub(r"\W+", "_", text.rpartition("/")[2]).strip("_").lower() or "model"


def describe_model(name: str, model: Modelled) -> ServerBlocks:
    """The server of a model, under a name; ConfigError if there is no such model. The name that an
    endpoint has for its only model may be missing as yet."""
    if isinstance(model, str) and model.endswith(YAML):
        raise ConfigError(
            f"models: '{model}': a YAML file names the policy model: give openai/gpt-5-mini or"
            " Endpoint(url, name), or write the judges into the YAML of rubric_judge"
        )
    if isinstance(model, str | Endpoint):
        if isinstance(model, str) and is_url(model):
            model = Endpoint(model)
        source = find_model(model, name, "models")
        return ServerBlocks(source.values, {}, {**source.files})
    if isinstance(model, type | Service) or not callable(model):
        return ServerBlocks({}, {name: GivenServer.of(model, Model, "models")}, {})
    return ServerBlocks({}, {name: GivenServer(FunctionModel, FunctionModel(model))}, {})
