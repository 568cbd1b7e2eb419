"""Logs of requests to OpenAI's Chat and Responses, and lm-eval's samples: one line each."""

from collections.abc import Mapping
from typing import Any

from ..errors import RolloutError
from ..responses import as_object, input_items
from ..serving.endpoints.replies import from_chat
from ..trajectory import ModelCall
from ..types import JsonObject
from .chat_items import as_tools, read_messages
from .foreign import Damaged, Foreign, count_in, number_in, rest_of

OPENAI, LM_EVAL = "openai", "lm_eval"

TO_BODY = ("request", "response")

OF_CHAT = frozenset({"messages", "tools", "functions", "stream", "stream_options", "n"})


def is_openai(row: JsonObject) -> bool:
    return all(isinstance(row.get(each), dict) for each in TO_BODY)


def read_openai(row: JsonObject) -> Foreign:
    """A request and its response; Damaged if they are of another API."""
    request, response = (_body(row[each]) for each in TO_BODY)
    if "choices" in response and isinstance(request.get("messages"), list):
        found = _read_chat(request, response)
    elif isinstance(response.get("output"), list) and "input" in request:
        found = _read_responses(request, response)
    elif isinstance(response.get("error"), dict):
        items = request.get("messages") or request.get("input") or []
        asked = read_messages(items) if "messages" in request else None
        found = Foreign(OPENAI, asked.items if asked else input_items({"input": items}), [])
        found.error = str(response["error"].get("message"))
    else:
        raise Damaged("request and response are neither of Chat nor of Responses")
    found.model = str(response.get("model") or request.get("model") or "")
    found.reward = number_in(row.get("reward"))
    found.fields = rest_of(row, *TO_BODY, "reward")
    return found


def _body(given: Mapping[str, Any]) -> JsonObject:
    """The body, also of a record of HTTP."""
    body = given.get("body")
    return dict(body if isinstance(body, dict) else given)


def _read_chat(request: JsonObject, response: JsonObject) -> Foreign:
    asked = read_messages(request["messages"])
    choices = response["choices"]
    try:
        read = from_chat({**response, "choices": choices[:1]}, {})
    except RolloutError as error:
        raise Damaged(error.message) from None
    usage = read["usage"] if response.get("usage") else None
    finish = as_object(choices[0] if choices else None).get("finish_reason")
    found = Foreign(OPENAI, asked.items, read["output"], tools=as_tools(request.get("tools")))
    found.params = {name: request[name] for name in request.keys() - OF_CHAT - {"model"}}
    found.calls, found.usage = [_one_call(read, usage, finish)], usage
    found.kept = rest_of({"other_choices": choices[1:], "messages": asked.unread})
    return found


def _read_responses(request: JsonObject, response: JsonObject) -> Foreign:
    usage = response.get("usage")
    reason = as_object(response.get("incomplete_details")).get("reason")
    found = Foreign(OPENAI, input_items(request), list(response["output"]))
    found.tools = [each for each in request.get("tools") or [] if isinstance(each, dict)]
    given = request.keys() - {"input", "tools", "model", "stream"}
    found.params = {name: request[name] for name in given}
    found.usage = usage if isinstance(usage, dict) else None
    found.response = response
    found.calls = [_one_call(response, found.usage, reason or "stop")]
    if failed := as_object(response.get("error")):
        found.error = str(failed.get("message"))
    return found


def _one_call(response: JsonObject, usage: Any, finish: Any) -> ModelCall:
    told = as_object(usage)
    return ModelCall(
        to=len(response["output"]),
        input=count_in(told.get("input_tokens")),
        output=count_in(told.get("output_tokens")),
        finish="length" if finish == "max_output_tokens" else finish,
    )


OF_SAMPLE = ("doc", "target", "arguments", "resps", "filtered_resps", "metrics", "doc_id")


def is_lm_eval(row: JsonObject) -> bool:
    return {"doc_id", "resps", "filtered_resps"} <= row.keys()


def read_lm_eval(row: JsonObject) -> Foreign:
    """A sample. One with several requests, as a question with choices, has the log-likelihood of
    each choice, and no text."""
    prompts, answers = _arguments(row.get("arguments")), row.get("resps") or []
    if not prompts:
        raise Damaged("it has no arguments")
    texts = [each for given in answers for each in _leaves(given) if isinstance(each, str)]
    asked = _prompt(prompts[0][0])
    said = read_messages([{"role": "assistant", "content": texts[0]}] if texts else [])
    names = row.get("metrics")
    metrics = names if isinstance(names, list) else []
    scores = {name: number_in(row.get(name)) for name in metrics}
    scores = {name: value for name, value in scores.items() if value is not None}
    doc = row.get("doc")
    found = Foreign(LM_EVAL, asked, said.items, fields={"expected_answer": row.get("target")})
    found.fields["doc"] = doc
    found.fields["doc_id"] = row["doc_id"]
    found.calls = [ModelCall(to=len(said.items))] if texts else []
    found.scores, found.reward = scores, next(iter(scores.values()), None)
    read = OF_SAMPLE if len(texts) == 1 == len(prompts) else OF_SAMPLE[:2]
    found.kept = {"filtered_resps": row["filtered_resps"], **rest_of(row, *read, *scores)}
    return found


def _arguments(given: Any) -> list[list[Any]]:
    """The arguments of each request: a list of lists, or objects of objects in its files."""
    found = [
        list(each.values()) if isinstance(each, dict) else each
        for each in (given.values() if isinstance(given, dict) else given or [])
    ]
    return [each for each in found if isinstance(each, list) and each]


def _leaves(given: Any) -> list[Any]:
    """The answers to a request, and not their log-likelihoods."""
    return given if isinstance(given, list) and given and isinstance(given[0], str) else []


def _prompt(given: Any) -> list[JsonObject]:
    """The items of a prompt, which may be chat messages."""
    if isinstance(given, list):
        return read_messages(given).items
    if not isinstance(given, str):
        raise Damaged("its prompt is neither text nor messages")
    return [{"type": "message", "role": "user", "content": given}]
