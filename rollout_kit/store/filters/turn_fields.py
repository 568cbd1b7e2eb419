"""What filters can ask of the turns of a rollout: `any(tool == 'bash' and error)`.

A turn counts once for each tool that it calls, and once if it calls none.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ...types import JsonObject
from ..steps import ToolUse, TurnStep, read_steps

TURNS = "turns of the rollout"
"""The name under which an expression reads them; no field can have it."""


class TurnUse(NamedTuple):
    """A turn and one of the tools that it calls; None if it calls none."""

    step: TurnStep
    tool: ToolUse | None


TURN_FIELDS: Mapping[str, Callable[[TurnUse], Any]] = {
    "turn": lambda use: use.step.number,
    "says": lambda use: use.step.text,
    "tool": lambda use: use.tool and use.tool.name,
    "arguments": lambda use: use.tool and use.tool.arguments,
    "output": lambda use: use.tool and use.tool.output,
    "error": lambda use: use.tool is not None and use.tool.is_error,
    "seconds": lambda use: use.step.call.model_s,
    "tool_seconds": lambda use: use.step.call.tool_s,
    "prompt_tokens": lambda use: use.step.call.input,
    "reply_tokens": lambda use: use.step.call.output,
    "usd": lambda use: use.step.call.cost_usd,
    "finish": lambda use: use.step.call.finish,
}
"""What can be named inside `any`, `all`, `count` and `last`."""


def _holds_last(found: Iterable[bool]) -> bool:
    return any(deque(found, maxlen=1))


ON_TURNS: Mapping[str, Callable[[Iterable[bool]], Any]] = {
    "any": any,
    "all": all,
    "count": sum,
    "last": _holds_last,
}


def read_uses(line: JsonObject) -> list[TurnUse]:
    """The turns of a line, as filters see them."""
    return list(list_uses(read_steps(line)))


def list_uses(steps: Iterable[TurnStep]) -> Iterator[TurnUse]:
    """The same of steps that were read."""
    for step in steps:
        for tool in step.tools or (None,):
            yield TurnUse(step, tool)


def read_inside(use: TurnUse, outside: Callable[[str], Any], name: str) -> Any:
    """A field of the turn, or else of the rollout."""
    field = TURN_FIELDS.get(name)
    return outside(name) if field is None else field(use)
