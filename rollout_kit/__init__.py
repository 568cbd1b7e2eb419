"""Collect verified rollouts from language models, durably.

What this module exports is the public API; each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "errors": "ConfigError ModelError OutputError RolloutError RolloutKitError TaskError ToolError"
    " VerifyError",
    "responses": "function_calls output_text",
    "serving.agent": "Agent AgentConfig",
    "serving.model": "Model ModelConfig",
    "serving.resources_server": "ResourcesServer ResourcesServerConfig",
    "serving.tools": "tool",
    "types": "Failure Rollout RunRequest SeedSessionResponse Unverified VerifyRequest"
    " VerifyResponse",
}
"""Module of this package → the public names that it defines."""

_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}

if TYPE_CHECKING:
    from .errors import (
        ConfigError,
        ModelError,
        OutputError,
        RolloutError,
        RolloutKitError,
        TaskError,
        ToolError,
        VerifyError,
    )
    from .responses import function_calls, output_text
    from .serving.agent import Agent, AgentConfig
    from .serving.model import Model, ModelConfig
    from .serving.resources_server import ResourcesServer, ResourcesServerConfig
    from .serving.tools import tool
    from .types import (
        Failure,
        Rollout,
        RunRequest,
        SeedSessionResponse,
        Unverified,
        VerifyRequest,
        VerifyResponse,
    )


def __getattr__(name: str) -> Any:
    """Import a public name from its module; later uses find it here."""
    if (module := _MODULES.get(name)) is None:
        raise AttributeError(f"module 'rollout_kit' has no attribute '{name}'")
    value = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
