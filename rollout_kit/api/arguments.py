"""Arguments of a run: from keywords and objects to the keys of its command; ConfigError for one
that is wrong."""

import inspect
import logging
from collections.abc import AsyncIterable, Iterable
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ..collecting.pacing.budget import Budget
from ..collecting.pacing.limiter import Limiter
from ..collecting.parts import Parts
from ..collecting.sources import check_repeats
from ..collecting.steps import RolloutLimits
from ..config import fields
from ..config.benchmarks.definition import read_definition, rows_file
from ..config.benchmarks.harbor import define_harbor
from ..config.benchmarks.training import is_defined, with_benchmark
from ..config.commands import OLD_KEYS, explain_old_key
from ..config.keys import (
    ClusterConfig,
    CollectConfig,
    HttpClientConfig,
    Parallelism,
    ProducingConfig,
    ReverifyConfig,
    RolloutsCommand,
    ServersConfig,
    TrackersConfig,
)
from ..errors import ConfigError
from ..serving.transport.retry import UNLIMITED, RetryPolicy
from .given import Given
from .reached import Reach

log = logging.getLogger("rollout_kit")

AnyRollouts = TypeVar("AnyRollouts", bound=RolloutsCommand)

OF_SERVERS = frozenset(
    {
        *HttpClientConfig.model_fields,
        *ServersConfig.model_fields,
        *ClusterConfig.model_fields,
        "request_timeout_s",
    }
) - {"shard"}
"""Keys that concern servers, and so have no effect on a run through servers that are there."""

OF_REQUESTS = ("rollout_timeout_s", "verify_timeout_s", "verify_group_timeout_s")
"""Keys of a run that also limit the requests between the servers that it starts."""

# fmt: off
OF_COMMANDS = frozenset({
    "json", "json_output", "dry_run", "confirm", "num_canary", "throughput_log",
    "dashboard", "dashboard_port", *TrackersConfig.model_fields,
})
# fmt: on
"""Keys of the commands that concern only people at a terminal."""

OF_ROLLOUT = ("max_attempts", "rollout_timeout_s", "verify_timeout_s", "park_after_s")
"""Limits of a rollout that are keys as well."""


def read_keys(
    kind: type[AnyRollouts], output: str | Path | None, keys: dict[str, Any], **own: Any
) -> AnyRollouts:
    """The arguments of a run as the keys of its command. `own` are those that its function
    names."""
    for name in OLD_KEYS.keys() & keys:
        log.warning("%s", explain_old_key(name))
    keys = {name: value for name, value in keys.items() if name not in OLD_KEYS}
    for name in keys:
        if name in ProducingConfig.model_fields:
            raise ConfigError(f"{name}: it is for a trainer: give it to rollout_kit.rl.collect")
        if name in OF_COMMANDS:
            raise ConfigError(f"{name}: has no effect here; leave it out")
    if output is not None:
        if not str(output):
            raise ConfigError("output: expected a path, got an empty text")
        put(own, "output_jsonl_fpath", output, keys, "output")
    try:
        return kind.model_validate(keys | own)
    except ValidationError as error:
        lines = [f"{'.'.join(one.path)}: {one.reason}" for one in fields.problems(error, kind)]
        raise ConfigError("\n".join(lines)) from None


def read_benchmark(reach: Reach, tasks: Any, keys: dict[str, Any]) -> Reach:
    """The servers with the benchmark that the keys name; its own keys are added to them."""
    given = reach.given
    if is_defined(keys.get("dataset")):
        keys["benchmark"] = with_benchmark(keys)["benchmark"]
        del keys["dataset"]
    name, folders = keys.get("benchmark"), keys.get("harbor_tasks")
    if name is None and folders is None:
        return reach
    if tasks is not None:
        raise ConfigError("tasks and benchmark were both given: a benchmark brings its rows")
    if given.verify or given.environment or given.agents or reach.is_running:
        raise ConfigError(
            "benchmark: it brings its own verifier and agent: give `model` alone, or YAML files"
            " with a model server as `servers`"
        )
    for key in ("input_jsonl_fpath", "dataset"):
        if key in keys:
            raise ConfigError(f"{key} and benchmark were both given: a benchmark brings its rows")
    if name is not None and folders is not None:
        raise ConfigError("benchmark and harbor_tasks were both given: leave one of them out")
    definition = (
        read_definition(name) if name else define_harbor(folders or [], keys.get("roots") or {})
    )
    for key, value in definition.to_keys(rows_file(definition)).items():
        keys.setdefault(key, value)
    return replace(reach, given=replace(given, benchmark=definition))


def read_collect(tasks: Any, output: str | Path | None, keys: dict[str, Any]) -> CollectConfig:
    """Those of a collection of `tasks`, which may be named by a key as well."""
    if keys.keys() & {"input_jsonl_fpath", "dataset"}:
        if tasks is not None:
            raise ConfigError("tasks: given twice: leave out input_jsonl_fpath and dataset")
    elif isinstance(tasks, bytes | dict) or not (
        isinstance(tasks, Path | Iterable | AsyncIterable) or callable(getattr(tasks, "next", None))
    ):
        found = type(tasks).__name__
        raise ConfigError(f"tasks: expected a JSONL file or an iterable of rows, got {found}")
    command = read_keys(CollectConfig, output, keys)
    check_repeats(command)
    return command


def read_reverify(
    rollouts: str | Path, output: str | Path | None, keys: dict[str, Any]
) -> ReverifyConfig:
    """Those of a re-verification."""
    output = output or keys.get("output_jsonl_fpath")
    if not isinstance(rollouts, str | Path) or not output:
        raise ConfigError("reverify: name the file of rollouts, and another one as output")
    keys = {name: value for name, value in keys.items() if name != "output_jsonl_fpath"}
    own = {"input_jsonl_fpath": str(rollouts)}
    return read_keys(ReverifyConfig, output, keys, **own)


def read_reach(servers: Any, given: Given, keys: dict[str, Any]) -> Reach:
    """The servers of a run, whose keys are taken out of `keys`."""
    own = {name: keys[name] for name in OF_SERVERS if name in keys}
    for name in own:
        del keys[name]
    if "config_paths" in keys:
        put(own, "servers", keys.pop("config_paths"), {"servers": servers} if servers else {})
        servers = own.pop("servers")
    if (head := keys.pop("head_server", None)) is not None:
        if servers is not None:
            raise ConfigError("head_server and servers: give one of the two")
        place = head if isinstance(head, dict) else head.model_dump()
        servers = f"http://{place.get('host', '127.0.0.1')}:{place.get('port', 11000)}"
    reach = Reach(servers, given, own)
    limits = {name: keys[name] for name in OF_REQUESTS if name in keys}
    return reach if reach.is_running else replace(reach, keys=own | limits)


def read_parts(
    keys: dict[str, Any],
    parallelism: int | str | Parallelism | Limiter | None,
    limits: Budget | RolloutLimits | None,
    retry: int | RetryPolicy | None,
    sink: Any,
) -> Parts:
    """The objects of a run; what a key can say as well is added to `keys`."""
    parts = Parts(sink=sink)
    if sink is not None and not callable(getattr(sink, "append_all", None)):
        raise ConfigError(f"sink: expected an object with append_all(outcomes), got {sink!r:.80}")
    if sink is not None and inspect.iscoroutinefunction(sink.append_all):
        raise ConfigError(
            "sink: append_all is async, and the run does not wait for it: write it without, and"
            " have it begin a task"
        )
    if hasattr(parallelism, "record_outcomes"):
        limiter: Any = parallelism
        parts = replace(parts, limiter=limiter)
        put(keys, "num_samples_in_parallel", limiter(), keys, "parallelism")
    elif parallelism is not None:
        put(keys, "num_samples_in_parallel", parallelism, keys, "parallelism")
    if isinstance(limits, Budget):
        for name in ("max_cost_usd", "max_total_tokens"):
            put(keys, name, getattr(limits, name), keys, "limits")
        parts = replace(parts, budget=limits)
    elif isinstance(limits, RolloutLimits):
        for name in OF_ROLLOUT:
            put(keys, name, getattr(limits, name), keys, "limits")
        for field in fields_of(limits):
            if field.name not in OF_ROLLOUT and getattr(limits, field.name) != field.default:
                raise ConfigError(f"limits: {field.name} is set by the run: leave it out")
    elif limits is not None:
        raise ConfigError(f"limits: expected a Budget or RolloutLimits, got {limits!r:.80}")
    if isinstance(retry, RetryPolicy):
        parts = replace(parts, retry=retry)
        retry = None if retry.max_tries == UNLIMITED else retry.max_tries
    if retry is not None:
        put(keys, "max_attempts", retry, keys, "retry")
    return parts


def put(
    into: dict[str, Any], name: str, value: Any, given: dict[str, Any], argument: str = ""
) -> None:
    """Set a key; ConfigError if it is given too, and not by this `argument`."""
    if name in given:
        raise ConfigError(f"{argument or name} and {name} mean the same: give one of the two")
    into[name] = value
