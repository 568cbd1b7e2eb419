"""A model that a program names, as a server of any name.

`Given` makes the policy model of it; judges are several models, each with a name of its own.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..config.instances import MODELS, POLICY
from ..config.sources import read_tree
from ..errors import ConfigError
from ..serving.functions import FunctionModel, name_of
from ..serving.given_server import GivenServer
from ..serving.model import Model
from ..serving.service import Service
from .given import YAML, Endpoint, Modelled, ServerBlocks, find_provider

MODEL_NAME = "policy_model_name"
"""The key of a provider's YAML that names the model."""

Models = Modelled | Iterable[Modelled] | Mapping[str, Modelled]
"""One model, several, or several by name."""


def name_models(given: Models) -> dict[str, Modelled]:
    """The models by name: the name that is given, or one made of the model's. ConfigError without
    any model."""
    if isinstance(given, Mapping):
        named = {str(name): model for name, model in given.items()}
    else:
        several = given if isinstance(given, list | tuple | set | frozenset) else [given]
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
    if isinstance(model, Endpoint):
        text = model.name
    elif isinstance(model, str):
        text = model
    elif isinstance(model, Service):
        text = model.name or type(model).__name__
    else:
        text = name_of(model) if callable(model) else type(model).__name__
    return re.sub(r"\W+", "_", text.rpartition("/")[2]).strip("_").lower() or "model"


def describe_model(name: str, model: Modelled) -> ServerBlocks:
    """The server of a model, under a name; ConfigError if there is no such model."""
    if isinstance(model, Endpoint):
        return ServerBlocks({name: model.block()}, {}, {})
    if isinstance(model, str):
        if model.endswith(YAML):
            raise ConfigError(
                f"'{model}': a YAML file names the policy model: give openai/gpt-5-mini or"
                " Endpoint(url, name), or write the judges into the YAML of rubric_judge"
            )
        return _describe_provider(name, *find_provider(model))
    if isinstance(model, type | Service) or not callable(model):
        return ServerBlocks({}, {name: GivenServer.of(model, Model, "models")}, {})
    return ServerBlocks({}, {name: GivenServer(FunctionModel, FunctionModel(model))}, {})


def _describe_provider(name: str, path: str, model: str) -> ServerBlocks:
    """The block of a provider's YAML, which is the policy model there."""
    defaults = read_tree(Path(path), path)
    block = defaults.pop(POLICY)
    del defaults[MODEL_NAME]
    for settings in block[MODELS].values():
        for key, value in settings.items():
            if value == f"${{{MODEL_NAME}}}":
                settings[key] = model
    return ServerBlocks({name: block}, {}, defaults)
