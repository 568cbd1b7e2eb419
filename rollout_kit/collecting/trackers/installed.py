"""Whether the packages of the wanted trackers are there: asked before anything is spent."""

from importlib.util import find_spec

from pydantic import BaseModel

from ...config.keys import TrackersConfig
from ...errors import ConfigError, how_to_install

SWITCHES = {"wandb": "project", "mlflow": "experiment", "otel": "endpoint"}
"""Tracker → the key that switches it on."""

MODULES = {
    "wandb": "wandb",
    "mlflow": "mlflow",
    "otel": "opentelemetry.exporter.otlp.proto.http",
    "prometheus": "prometheus_client",
}
"""Extra → a module that it installs."""


def is_on(keys: BaseModel) -> bool:
    """Whether the key is given that switches a tracker on."""
    return getattr(keys, SWITCHES[_name(keys)]) is not None


def check_trackers(command: TrackersConfig) -> None:
    """ConfigError if a wanted tracker's package is not installed."""
    for keys in (command.wandb, command.mlflow, command.otel):
        check_installed(keys)
    if command.metrics_port is not None:
        _check("metrics_port", "prometheus")


def check_installed(keys: BaseModel) -> None:
    """The same for the keys of one tracker."""
    if is_on(keys):
        name = _name(keys)
        _check(f"{name}.{SWITCHES[name]}", name)


def _name(keys: BaseModel) -> str:
    return type(keys).__name__.removesuffix("Config").lower()


def _check(key: str, extra: str) -> None:
    try:
        is_there = find_spec(MODULES[extra]) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        command = how_to_install(f"rollout-kit[{extra}]")
        raise ConfigError(f"{key} needs the extra {extra}, which is not installed: {command}")
