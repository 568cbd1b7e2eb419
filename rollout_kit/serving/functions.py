"""Servers made of a user's function: a model that is `answer(params)`, a verifier that is
`verify(task, response)`. A function that is not `async` runs in a thread, so it may take its time.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..errors import ConfigError
from ..responses import make_response, message_item
from ..types import JsonObject, VerifyRequest
from .fingerprint import digest_function
from .model import Model
from .resources_server import ResourcesServer
from .service import invoke

Answer = str | JsonObject
"""A text, or a complete response."""

Answering = Callable[[JsonObject], Answer | Awaitable[Answer]]

Verdict = float | Mapping[str, Any]
"""A reward, or a mapping with `reward`."""

Verifying = Callable[[JsonObject, JsonObject], Verdict | Awaitable[Verdict]]


class FunctionModel(Model):
    """A model whose answers are those of a function of the create params."""

    is_own = True

    def __init__(self, answer: Answering, peers: Any = None, name: str = "") -> None:
        super().__init__(self.Config(), peers, name)
        self._answer = answer

    async def responses(self, params: JsonObject) -> JsonObject:
        answer = await call(self._answer, params)
        return text_response(answer) if isinstance(answer, str) else answer

    def model_name(self) -> str:
        return name_of(self._answer)

    def generation_settings(self) -> JsonObject:
        return {"answer": self.model_name(), "code": digest_function(self._answer)}


def verifier_of(verify: Callable[..., Any]) -> type[ResourcesServer]:
    """The class of a resources server that verifies by a function: `verify(task, response)`, or
    `verify(request)` with a `VerifyRequest`."""
    try:
        given = inspect.signature(verify, eval_str=True).parameters.values()
    except (TypeError, ValueError, NameError):
        given = ()
    methods: dict[int, Any] = {1: _of_request, 2: _of_task}
    if len(given) not in methods:
        names = ", ".join(each.name for each in given)
        raise ConfigError(
            f"verify: expected a function verify(task, response), got {name_of(verify)}({names})"
        )
    method = methods[len(given)](verify)
    if len(given) == 1:
        kind = next(iter(given)).annotation
        if kind in (inspect.Parameter.empty, Any):
            kind = VerifyRequest
        if not (isinstance(kind, type) and issubclass(kind, VerifyRequest)):
            raise ConfigError(f"verify: {name_of(verify)} must take a VerifyRequest, not {kind!r}")
        method.__annotations__ = {"request": kind}
    module = getattr(verify, "__module__", None) or "typed"  # code that was typed in may have none
    own = {"verify": method, "function": staticmethod(verify), "__module__": module}
    return type(name_of(verify), (ResourcesServer,), own)


def _of_request(verify: Callable[..., Any]) -> Callable[..., Any]:
    async def method(self: Any, request: Any) -> Any:
        return await call(verify, request)

    return method


def _of_task(verify: Callable[..., Any]) -> Callable[..., Any]:
    async def method(self: Any, task: JsonObject, response: JsonObject) -> Any:
        return await call(verify, task, response)

    return method


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    found = await invoke(function, *arguments)
    return await found if inspect.isawaitable(found) else found


def name_of(function: Callable[..., Any]) -> str:
    """A name for what a function does; a lambda has none of its own."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return "function" if name == "<lambda>" else name


def text_response(text: str) -> JsonObject:
    """Build a response with `text`; each word counts as one output token."""
    return make_response("scripted", [message_item(text)], usage_of(len(text.split())))


def usage_of(output_tokens: int) -> JsonObject:
    """The usage of a made-up response."""
    return {"input_tokens": 1, "output_tokens": output_tokens, "total_tokens": 1 + output_tokens}
