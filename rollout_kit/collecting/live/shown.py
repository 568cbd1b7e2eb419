"""What `ng_ctl` sends and shows. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...config.keys import NO_KNOBS, CtlConfig
from ...errors import ConfigError
from ...types import JsonObject
from ..pacing.bill import dollars
from .snapshot import KnobChange

COLUMNS = ("run_id", "state", "done", "failed", "in flight", "reward", "cost", "time", "output")


def request_of(command: CtlConfig) -> JsonObject:
    """The request of a command; ConfigError if its keys do not fit together."""
    steer: JsonObject = {}
    for name in command.model_fields_set - NO_KNOBS:
        value = getattr(command, name)
        steer[name] = value.spell() if hasattr(value, "spell") else value
    if command.stop:
        steer["stop"] = "now" if command.now else "drain"
    elif command.now:
        raise ConfigError("now: it needs stop: ng_ctl stop +now=true")
    return {"steer": steer, "dry_run": command.dry_run, "from": "ng_ctl"}


def format_changes(reply: Mapping[str, Any]) -> str:
    """A line for each change, and the state of the run."""
    changes = [str(KnobChange(**each)) for each in reply["changes"]]
    if reply["dry_run"]:
        changes = [f"would change  {each}" for each in changes]
    state, in_flight = reply["state"], reply["snapshot"]["counts"]["in_flight"]
    is_now = any((each["what"], each["new"]) == ("run", "now") for each in reply["changes"])
    may = "are cancelled" if is_now else "may finish"
    going_on = f": {in_flight:,} in flight {may}" if state in ("pausing", "stopping") else ""
    return "\n".join([*(changes or ["nothing changes: it is so already"]), f"{state}{going_on}"])


def format_list(found: Mapping[str, Any]) -> str:
    """A line for each collection, and one for each that cannot be asked."""
    listed, problems = found["collections"], found["problems"]
    if not (listed or problems):
        return "No collection of yours runs on this machine."
    rows = [COLUMNS, *map(_cells, listed)] if listed else []
    return "\n".join([*_align(rows), *problems])


def _cells(snapshot: Mapping[str, Any]) -> tuple[str, ...]:
    counts, reward, cost = snapshot["counts"], snapshot["reward"], snapshot["cost"]
    planned = "" if counts["planned"] is None else f"/{counts['planned']:,}"
    return (
        snapshot["run_id"],
        snapshot["state"],
        f"{counts['done']:,}{planned}",
        f"{counts['failed']:,}",
        f"{counts['in_flight']:,}/{snapshot['parallel']['limit']:,}",
        f"{reward['value']:.3f}" if reward else "-",
        dollars(cost["usd"]) if cost and cost["usd"] is not None else "-",
        f"{snapshot['elapsed_s']:,.0f} s",
        snapshot["output"] or "-",
    )


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
