"""Methods that the policy can call as function tools: JSON schema, route and arguments."""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from ..errors import ConfigError, RolloutError, SessionLost, ToolError, validation_summary
from ..types import JsonObject
from .transport.wire import RESERVED

SAFE_NAME = re.compile(r"[A-Za-z0-9_.-]+")
"""A tool's name becomes a path segment, so it must not contain a separator."""

NO_TOOL = "error: no tool"
"""Start of the output of a call that the agent did not send to a server."""

POLICY_SIDE, USER_SIDE = "policy", "user"
"""Who may call a tool."""

Handler = TypeVar("Handler", bound=Callable[..., Any])


def tool(function: Handler) -> Handler:
    """Offer a method to the policy: schema from its signature, description from its docstring.

    The method takes one pydantic model or plain annotated arguments. It returns text, a pydantic
    model or JSON. An exception becomes text for the model.

    Example:

        class Calculator(rk.ResourcesServer):
            @rk.tool
            async def add(self, a: float, b: float) -> str:
                '''Add two numbers.'''
                return str(a + b)


        print(list(Calculator.tools))
    """
    function.__tool__ = POLICY_SIDE  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True, slots=True)
class Tool:
    """One `@tool` method of a class."""

    name: str
    schema: JsonObject
    arguments: type[BaseModel]
    takes_model: bool

    def parse(self, raw: bytes) -> BaseModel:
        """The call's arguments; ToolError, which the policy reads, if they are invalid."""
        try:
            return self.arguments.model_validate_json(raw or b"{}")
        except ValidationError as error:
            raise ToolError(f"bad arguments: {validation_summary(error)}") from None

    def bind(self, server: object, arguments: BaseModel) -> tuple[Callable[..., Any], list[Any]]:
        """The server's method and its arguments."""
        if self.takes_model:
            return getattr(server, self.name), [arguments]
        names = type(arguments).model_fields
        return getattr(server, self.name), [getattr(arguments, name) for name in names]


@dataclass(frozen=True, slots=True)
class ForwardedTool:
    """A tool that a server offers for another program. `call` takes the arguments of the model."""

    name: str
    schema: JsonObject
    call: Callable[[JsonObject], Any]

    def parse(self, raw: bytes) -> JsonObject:
        """The call's arguments; ToolError, which the policy reads, if they are no object."""
        return arguments_of({"arguments": raw})

    def bind(self, server: object, arguments: JsonObject) -> tuple[Callable[..., Any], list[Any]]:
        """The function and its arguments."""
        return self.call, [arguments]


def is_callable(name: str) -> bool:
    """Whether a policy may call a tool of this name; it must not be a route of the server."""
    return SAFE_NAME.fullmatch(name) is not None and name not in RESERVED


def arguments_of(call: JsonObject) -> JsonObject:
    """A function call's arguments; ToolError, which the policy reads, if they are no object."""
    try:
        arguments = orjson.loads(call.get("arguments") or "{}")
    except orjson.JSONDecodeError as error:
        raise ToolError(f"the arguments are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ToolError("the arguments must be a JSON object")
    return arguments


def refusal_text(error: RolloutError) -> str | None:
    """The text that the policy reads about a failed call; None if the tool could not be reached,
    which fails the attempt instead."""
    absent = isinstance(error, SessionLost) or (error.retryable and error.status != 500)
    return None if absent else f"error: {error.message}"


def by_name(server: str, tools: Iterable[ForwardedTool]) -> dict[str, ForwardedTool]:
    """The tools of other programs that a server offers, by name; ConfigError for a name that is
    taken, or that the policy cannot call."""
    found: dict[str, ForwardedTool] = {}
    for each in tools:
        why = "" if is_callable(each.name) else "has a name that stands for a route of the server"
        why = "occurs twice" if each.name in found else why
        if why:
            raise ConfigError(f"{server}: the tool '{each.name}' {why}: leave it out with `tools`")
        found[each.name] = each
    return found


def find_tools(cls: type, side: str = POLICY_SIDE) -> dict[str, Tool]:
    """The tools of one side by name: methods of a class that are marked as such. TypeError for an
    invalid name or signature."""
    names = [name for name in dir(cls) if getattr(getattr(cls, name), "__tool__", "") == side]
    return {name: _tool(cls, name) for name in names}


def _tool(cls: type, name: str) -> Tool:
    if name in RESERVED:
        raise TypeError(
            f"{cls.__name__}.{name}: a tool cannot be called '{name}', which is a route"
        )
    function = getattr(cls, name)
    hints = get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    for parameter in parameters:
        if parameter.name not in hints:
            raise TypeError(f"{cls.__name__}.{name}: annotate the parameter '{parameter.name}'")
    only = hints[parameters[0].name] if len(parameters) == 1 else None
    if isinstance(only, type) and issubclass(only, BaseModel):
        arguments, takes_model = only, True
    else:
        arguments, takes_model = _arguments_model(name, parameters, hints), False
    schema = {
        "type": "function",
        "name": name,
        "description": inspect.getdoc(function) or "",
        "parameters": _parameters_schema(arguments),
        "strict": False,
    }
    return Tool(name, schema, arguments, takes_model)


def _arguments_model(
    name: str, parameters: list[inspect.Parameter], hints: dict[str, Any]
) -> type[BaseModel]:
    fields: dict[str, Any] = {
        parameter.name: (
            hints[parameter.name],
            ... if parameter.default is inspect.Parameter.empty else parameter.default,
        )
        for parameter in parameters
    }
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _parameters_schema(arguments: type[BaseModel]) -> JsonObject:
    schema = TypeAdapter(arguments).json_schema()
    schema.pop("title", None)
    schema.pop("description", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
    return {"type": "object", "properties": {}, **schema}


def is_same_answer(stored: str, answer: str) -> bool:
    """Whether a tool repeated what an agent stored, which may have been cut for the policy."""
    start, cut, _ = stored.rpartition("…")
    is_start = bool(cut) and len(answer) > len(start) and answer.startswith(start)
    return stored == answer or is_start
