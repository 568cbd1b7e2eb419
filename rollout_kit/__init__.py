"""Collect verified rollouts from language models, durably.

What this module exports is the public API; each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import _moved
from ._version import __version__ as __version__

_HOMES = {
    "store.rollouts": "Rollouts load",
    "api.judging": "judge",
    "api.model_names": "Endpoint",
    "api.runs": "Collected collect reverify",
    "api.servers": "connect servers",
    "api.stream": "RowSource",
    "api.sync": "collect_sync",
    "collecting.live.snapshot": "Snapshot",
    "collecting.pacing.budget": "Budget",
    "collecting.pacing.limiter": "Limiter",
    "collecting.schedule": "END Later",
    "collecting.steps": "RolloutLimits",
    "errors": "ConfigError ModelError OutputError RolloutError RolloutKitError StopRun TaskError"
    " ToolError VerifyError",
    "launch.reach": "Servers",
    "responses": "Item JsonObject content_texts function_call_item function_call_output"
    " function_calls input_items make_response message_item output_items output_text"
    " reasoning_item",
    "serving.sandbox.limits": "SandboxError SandboxLimits SandboxRun",
    "serving.sandbox.sandbox": "Sandbox",
    "serving.agent": "Agent AgentConfig",
    "serving.agents.turns": "Turns",
    "serving.gymnasium": "Game GameRequest GymnasiumServer Step",
    "serving.judge": "Evaluation Judge JudgeConfig",
    "serving.judges.panel": "Graded RubricConfig RubricJudges",
    "serving.judges.reward": "RewardModel RewardModelConfig ScoredAnswer",
    "serving.judges.rubric": "Criterion",
    "serving.model": "Model ModelConfig",
    "serving.resources_server": "ResourcesServer ResourcesServerConfig Reverify",
    "serving.tools": "tool",
    "serving.transport.retry": "RetryPolicy",
    "serving.users.profile": "UserProfile UserRequest",
    "serving.users.two_sided": "TwoSidedServer user_tool",
    "serving.verify_workers": "VerifyWorkersConfig",
    "types": "Failure Key OutcomeSink Rollout RolloutInfo RunRequest SeedSessionResponse Unverified"
    " VerifyRequest VerifyResponse",
    "serving.workers.pool": "WorkerPool",
}
"""Module of this package → the public names that it defines."""

_moved.install()

_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}

if TYPE_CHECKING:
    from .api.judging import judge
    from .api.model_names import Endpoint
    from .api.runs import Collected, collect, reverify
    from .api.servers import connect, servers
    from .api.stream import RowSource
    from .api.sync import collect_sync
    from .collecting.live.snapshot import Snapshot
    from .collecting.pacing.budget import Budget
    from .collecting.pacing.limiter import Limiter
    from .collecting.schedule import END, Later
    from .collecting.steps import RolloutLimits
    from .errors import (
        ConfigError,
        ModelError,
        OutputError,
        RolloutError,
        RolloutKitError,
        StopRun,
        TaskError,
        ToolError,
        VerifyError,
    )
    from .launch.reach import Servers
    from .responses import (
        Item,
        JsonObject,
        content_texts,
        function_call_item,
        function_call_output,
        function_calls,
        input_items,
        make_response,
        message_item,
        output_items,
        output_text,
        reasoning_item,
    )
    from .serving.agent import Agent, AgentConfig
    from .serving.agents.turns import Turns
    from .serving.gymnasium import Game, GameRequest, GymnasiumServer, Step
    from .serving.judge import Evaluation, Judge, JudgeConfig
    from .serving.judges.panel import Graded, RubricConfig, RubricJudges
    from .serving.judges.reward import RewardModel, RewardModelConfig, ScoredAnswer
    from .serving.judges.rubric import Criterion
    from .serving.model import Model, ModelConfig
    from .serving.resources_server import ResourcesServer, ResourcesServerConfig, Reverify
    from .serving.sandbox.limits import SandboxError, SandboxLimits, SandboxRun
    from .serving.sandbox.sandbox import Sandbox
    from .serving.tools import tool
    from .serving.transport.retry import RetryPolicy
    from .serving.users.profile import UserProfile, UserRequest
    from .serving.users.two_sided import TwoSidedServer, user_tool
    from .serving.verify_workers import VerifyWorkersConfig
    from .serving.workers.pool import WorkerPool
    from .store.rollouts import Rollouts, load
    from .types import (
        Failure,
        Key,
        OutcomeSink,
        Rollout,
        RolloutInfo,
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
