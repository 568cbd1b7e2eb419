"""The keys of every instance, whatever its implementation: where and how it runs."""

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ..errors import suggest
from ..types import JsonObject
from . import fields

APP = "app.py"

RAY = "ray"

PLACES = ("local", "process", RAY)

OF_RAY = ("num_gpus", "num_cpus", "resources")
"""Keys that say what a server needs of a node."""

NUM_WORKERS, NUM_REPLICAS = "num_workers", "num_replicas"
"""The processes of any server; the copies of a model that a server starts, wherever they run."""

LABEL = re.compile(r"[\w-]+")


class CommonKeys(BaseModel):
    """Keys of every instance, whatever its implementation."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
    placement: str | None = Field(
        default=None,
        description="Where the server runs. local: in the process of the command. process: in a"
        " separate process. ray: on a node of a Ray cluster. You can also give the URL"
        " of a running server.",
    )
    host: str | None = Field(default=None, description="Address to listen on. null = default_host.")
    port: int | None = Field(
        default=None, ge=0, le=65535, description="Port to listen on. null or 0 = a free one."
    )
    num_workers: int = Field(default=1, ge=1, description="Number of processes of the server.")
    process: str | None = Field(
        default=None, description="Name of a process. Servers with the same name share one process."
    )
    env: dict[str, str] = Field(
        default={},
        description="Additional environment variables of the server's process.",
    )
    python: str | None = Field(
        default=None, description="Python interpreter of the server's process."
    )
    token: str | None = Field(
        default=None,
        description="Secret token that the server requires, if it does not belong to this run.",
    )
    entrypoint: str | None = Field(
        default=None, description="File with the server's class, in its folder. null = app.py."
    )
    datasets: list[JsonObject] = Field(
        default=[], description="Files of tasks, for +dataset= and ng_prepare_data."
    )
    num_gpus: float | None = Field(
        default=None, ge=0, description="With ray: number of GPUs of each replica."
    )
    num_cpus: float | None = Field(
        default=None, ge=0, description="With ray: number of CPU cores of each replica."
    )
    resources: dict[str, float] = Field(
        default={}, description="With ray: other resources of each replica, by name."
    )

    @field_validator("placement")
    @classmethod
    def _is_a_place(cls, value: str | None) -> str | None:
        if value is None or value in PLACES or is_url(value):
            return value
        hint = suggest(value, PLACES)
        raise ValueError(f"must be local, process, ray or an http(s) URL{hint}")

    @field_validator("num_workers", "env", "datasets", "resources", mode="before")
    @classmethod
    def _null_is_the_default(cls, value: Any, info: Any) -> Any:
        return cls.model_fields[info.field_name].get_default() if value is None else value


def split_keys(given: JsonObject) -> tuple[JsonObject, JsonObject]:
    """The common keys of an instance, and those of its implementation. On Ray `num_replicas` says
    how many servers there are, each with one replica."""
    common = {key: value for key, value in given.items() if key in CommonKeys.model_fields}
    own = {key: value for key, value in given.items() if key not in common}
    if common.get("placement") == RAY and NUM_REPLICAS in own and "num_workers" not in common:
        common[NUM_WORKERS] = own.pop(NUM_REPLICAS)
    return common, own


def find_copy_clashes(given: JsonObject, has_replicas: bool) -> Iterator[fields.Problem]:
    """Problems of a server whose keys ask for copies in two ways. `has_replicas`: `num_replicas` is
    one of its own keys."""
    workers, replicas = given.get(NUM_WORKERS), given.get(NUM_REPLICAS)
    is_several = isinstance(workers, int) and workers > 1
    if is_several and given.get("max_cost_usd") is not None:
        reason = "each process would spend that much: leave out num_workers, or max_cost_usd"
        yield fields.Problem((NUM_WORKERS,), reason, workers)
    if not (is_several and has_replicas):
        return
    if given.get("placement") != RAY and not given.get("base_url"):
        reason = f"each process would start all copies of the model: write {NUM_REPLICAS}"
        yield fields.Problem((NUM_WORKERS,), reason, workers)
    elif given.get("placement") == RAY and replicas is not None:
        reason = f"leave it out: {NUM_REPLICAS} is the number of copies on all nodes together"
        yield fields.Problem((NUM_WORKERS,), reason, workers)


def explain_old_copies(name: str, given: JsonObject, has_replicas: bool) -> Iterator[str]:
    """A line for a server on Ray that names its copies by the other key."""
    meant, old = (NUM_REPLICAS, NUM_WORKERS) if has_replicas else (NUM_WORKERS, NUM_REPLICAS)
    if given.get("placement") == RAY and given.get(old) is not None and given.get(meant) is None:
        yield f"{name}: {old} is taken for {meant}, which you should write in its place"


def clashes(keys: CommonKeys, common: JsonObject) -> Iterator[fields.Problem]:
    """Common keys that contradict each other."""
    if keys.process is not None and not LABEL.fullmatch(keys.process):
        reason = "is a label, and the name of a log: letters, digits, - and _"
        yield fields.Problem(("process",), reason, keys.process)
    if keys.process is not None and keys.num_workers > 1:
        reason = "one process cannot be several: leave out num_workers, or process"
        yield fields.Problem(("num_workers",), reason, keys.num_workers)
    if keys.token is not None and not is_url(keys.placement or ""):
        reason = "is for a server placed by URL; the run's own servers share auth_token"
        yield fields.Problem(("token",), reason, None)
    own_interpreter = keys.python is None and not is_url(keys.placement or "")
    if keys.entrypoint is not None and own_interpreter and PurePath(keys.entrypoint).name != APP:
        reason = f"is not read: the server is the class in its folder's {APP}; leave it out"
        yield fields.Problem(("entrypoint",), reason, keys.entrypoint)
    for key in OF_RAY if keys.placement != RAY else ():
        if common.get(key) is not None:
            yield fields.Problem((key,), "needs placement: ray", common[key])
    if keys.placement == RAY:
        for key in ("python", "process", "port", "host", "env"):
            if common.get(key):
                yield fields.Problem((key,), "means nothing with placement: ray", common[key])
    if keys.placement == "local":
        for key in ("python", "process", "port", "host"):
            if common.get(key) is not None:
                yield fields.Problem((key,), "needs placement: process", common[key])
        if keys.num_workers > 1:
            reason = "more than one worker needs placement: process"
            yield fields.Problem(("num_workers",), reason, keys.num_workers)
    elif is_url(keys.placement or ""):
        for key in ("python", "process", "port", "host", "num_workers"):
            if common.get(key) is not None:
                reason = "means nothing with a URL placement: that server is already running"
                yield fields.Problem((key,), reason, common[key])


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def name_stray(place: tuple[str, str], key: str, value: Any, inner: Any) -> fields.Problem:
    """The problem that a key of an instance is not under its implementation. `place` are the names
    of the instance and of its type, `inner` is what that holds."""
    held = inner if isinstance(inner, dict) else {}
    blocks = [each for each, given in held.items() if isinstance(given, dict | None)]
    under = blocks[0] if len(blocks) == 1 else "<name>"
    is_deep = key in held and key != under
    beside, at = (under, place) if is_deep else (place[1], place[:1])
    meant = next(iter(value), key) if key == under and isinstance(value, dict) else key
    reason = f"'{key}' lies beside '{beside}': an instance's keys belong under its implementation"
    example = ".".join([*place, under, meant])
    return fields.Problem((*at, key), f"{reason}, as in {example}")
