"""Keys that were given and change nothing, so that a command can name them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from .fields import keys
from .keys import CollectConfig, Command, EstimateConfig, GroupsConfig, RunConfig
from .sources import COMMAND_LINE, ENV_FILE, Merged


class Situation(NamedTuple):
    """What a collection was given, and what its servers do."""

    command: CollectConfig
    has_arms: bool
    scores_groups: bool
    uses_ray: bool
    over_http: bool
    """Whether a server runs outside of this process."""
    is_beside: bool
    """Whether the servers are those of an `ng_run`."""
    runs_code: bool
    """Whether a server runs code of a model."""
    has_gym: bool
    """Whether a server is one of NeMo Gym's."""
    chooses_ways: bool
    """Whether the run chooses how its requests are sent."""


class Need(NamedTuple):
    """What keys need to have an effect."""

    keys: tuple[str, ...]
    holds: Callable[[Situation], object]
    without: str
    """Why they have none otherwise, as the end of a sentence."""


OF_PROCESSES = (
    "openenv",
    "global_aiohttp_connector_limit",
    "global_aiohttp_connector_limit_per_host",
    "max_reply_mb",
    "max_restarts",
    "ready_timeout_s",
    "log_dir",
    "auth_token",
)
"""Keys about servers in processes of their own, and about the connections to them."""

NEEDS = (
    Need(OF_PROCESSES, lambda it: it.over_http, "every server runs in this process"),
    Need(("head_server",), lambda it: it.is_beside, "this command has servers of its own"),
    Need(("unsafe_code",), lambda it: it.runs_code, "no server here runs code of a model"),
    Need(
        ("nemo_gym_code", "nemo_gym_python", "python_version", "install"),
        lambda it: it.has_gym,
        "no server here has NeMo Gym's code",
    ),
    Need(
        ("num_canary",),
        lambda it: it.command.confirm or it.chooses_ways or isinstance(it.command, EstimateConfig),
        "it needs +confirm=true, +cheapest=true, or ng_estimate",
    ),
    Need(
        ("confirm",),
        lambda it: not isinstance(it.command, EstimateConfig),
        "ng_estimate asks no question",
    ),
    Need(("arms_seed",), lambda it: it.has_arms, "it needs +arms=…"),
    Need(
        ("audit_fraction", "park_after_s", "verify_timeout_s", "retry_invalid_judge_responses"),
        lambda it: not it.command.skip_verification,
        "skip_verification leaves nothing to verify",
    ),
    Need(
        ("min_members",),
        lambda it: it.command.incomplete_groups == "partial",
        "it needs +incomplete_groups=partial",
    ),
    Need(tuple(keys(GroupsConfig)), lambda it: it.scores_groups, "no server here scores groups"),
    Need(
        ("worker_lease_s",),
        lambda it: it.command.executor != "local",
        "it needs +executor=processes or ray",
    ),
    Need(("ray_address",), lambda it: it.uses_ray, "nothing here runs on Ray"),
    Need(("wandb",), lambda it: it.command.wandb.project, "it needs wandb.project"),
    Need(("mlflow",), lambda it: it.command.mlflow.experiment, "it needs mlflow.experiment"),
    Need(("otel",), lambda it: it.command.otel.endpoint, "it needs otel.endpoint"),
    Need(("upload_rollouts",), lambda it: not it.command.upload_rollouts, "nothing is uploaded"),
)


def find_idle(given: Situation) -> Iterator[str]:
    """A warning for each key of a collection that was given in vain."""
    for need in NEEDS:
        named = [key for key in need.keys if key in given.command.model_fields_set]
        if named and not need.holds(given):
            change = "change" if len(named) > 1 else "changes"
            yield f"warning: {', '.join(named)} {change} nothing here: {need.without}"


PASSED = frozenset({"responses_create_params", "arms"})
"""Keys of a collection that it takes from the configuration of a running `ng_run`."""


def find_of_others(merged: Merged, command: type[Command]) -> Iterator[str]:
    """A warning for each key in a YAML file that only the other one of ng_run and
    ng_collect_rollouts has. `env.yaml` is for both."""
    if command is RunConfig:
        others, owner = keys(CollectConfig).keys() - PASSED, "ng_collect_rollouts"
    elif command in (CollectConfig, EstimateConfig):
        others, owner = keys(RunConfig).keys(), "ng_run"
    else:
        return
    for key in sorted(others - keys(command).keys()):
        origin = merged.origin(key) if key in merged.tree else COMMAND_LINE
        if origin not in (COMMAND_LINE, ENV_FILE):
            yield (
                f"'{key}' in {origin} changes nothing here: {owner} has this key. Give it to that"
                " command, or put it into env.yaml, which both read"
            )
