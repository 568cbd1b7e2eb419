"""The common work of all sides: rows, and the bytes that the endpoint answers."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

LONG_TOKENS = 6_200
"""Tokens of a long answer; with ids and log-probs about 200 KB of JSON."""

MODELS = json.dumps({"object": "list", "data": [{"id": "fake", "object": "model"}]}).encode()

SYNONYMS = ("Blazing", "Warm", "Scorching")
VALUES = [sum(map(ord, word)) for word in SYNONYMS]
NUM_TURNS = len(SYNONYMS) + 2
"""Two look-ups, a submission and a final message."""

TURNS = "turns-"
"""Start of a kind of work with so many turns: the number follows."""

TOOL_OUTPUT = '{"synonym_value":711}'
TOOLS = frozenset({b"/get_synonym_value", b"/extract_synonym_values", b"/increment_counter"})

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answers:
    """Complete HTTP replies: one per turn for the Responses API, and one chat completion."""

    turns: list[bytes]
    chat: bytes


@cache
def answers(kind: str) -> Answers:
    """`short`: 2 KB · `long`: 200 KB with token ids and log-probs · `tools`: five turns ·
    `turns-40`: forty turns, each of 1.5 KB of text and a tool call but for the last."""
    text = "Let me consider each of the options in turn. " * 32 + "\\boxed{B}"
    items: list[Json] = [message(text)]
    if kind == "long":
        draw = random.Random(0)
        ids = [draw.randrange(100_000) for _ in range(LONG_TOKENS)]
        text = ("word" * LONG_TOKENS) + "\\boxed{B}"
        items = [
            {
                **message(text),
                "prompt_token_ids": ids[:128],
                "generation_token_ids": ids,
                "generation_log_probs": [-draw.expovariate(2) for _ in ids],
            }
        ]
    if kind == "tools":
        calls = [call("get_synonym_value", {"synonym": word}) for word in SYNONYMS]
        items = [*calls, call("extract_synonym_values", {"synonym_values": VALUES}), message(text)]
    outputs = [[item] for item in items]
    if kind.startswith(TURNS):
        outputs = [
            [message(text), call("increment_counter", {"count": 1}, number)]
            for number in range(num_turns(kind) - 1)
        ]
        outputs.append([message(text)])
    said = [json.dumps(response(output, number)) for number, output in enumerate(outputs)]
    turns = [reply(each.encode()) for each in said]
    return Answers(turns, reply(json.dumps(completion(text)).encode()))


def num_turns(kind: str) -> int:
    """Model calls of one rollout."""
    if kind.startswith(TURNS):
        return int(kind.removeprefix(TURNS))
    return NUM_TURNS if kind == "tools" else 1


def reply(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def message(text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": "msg_0",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def call(name: str, arguments: Json, number: int = 0) -> Json:
    return {
        "id": f"fc_{name}_{number}",
        "type": "function_call",
        "call_id": f"call_{name}_{len(json.dumps(arguments))}_{number}",
        "name": name,
        "arguments": json.dumps(arguments),
        "status": "completed",
    }


def response(output: list[Json], number: int) -> Json:
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_750_000_000.0,
        "model": "fake",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "output": output,
        "usage": {
            "input_tokens": 128,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 360,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 488,
        },
    }


def completion(text: str) -> Json:
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 1_750_000_000,
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "logprobs": None,
                "message": {"role": "assistant", "content": text, "refusal": None},
            }
        ],
        "usage": {"prompt_tokens": 128, "completion_tokens": 360, "total_tokens": 488},
    }


def choice_row(index: int) -> Json:
    question = f"Question {index}: which one? A: first B: second C: third D: fourth"
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
        "options": [{letter: letter} for letter in "ABCD"],
        "expected_answer": "ABCD"[index % 4],
    }


def tool(name: str, argument: str, schema: Json) -> Json:
    parameters = {"type": "object", "properties": {argument: schema}, "required": [argument]}
    return {"type": "function", "name": name, "parameters": parameters, "strict": False}


def turns_row(index: int, turns: int) -> Json:
    return {
        "id": index,
        "responses_create_params": {
            "input": [{"role": "user", "content": f"Question {index}: raise the counter."}],
            "tools": [tool("increment_counter", "count", {"type": "integer"})],
        },
        "initial_count": 1,
        "expected_count": turns,
    }


def tool_row(index: int) -> Json:
    values = {"type": "array", "items": {"type": "integer"}}
    return {
        "id": index,
        "responses_create_params": {
            "input": [{"role": "user", "content": f"Question {index}: I am sweating."}],
            "tools": [
                tool("get_synonym_value", "synonym", {"type": "string"}),
                tool("extract_synonym_values", "synonym_values", values),
            ],
        },
        "expected_synonyms": list(SYNONYMS),
        "expected_synonym_values": VALUES,
        "minefield_label": "Hot",
        "minefield_label_value": 299,
    }


def rows(kind: str, number: int) -> Iterator[str]:
    make = tool_row if kind == "tools" else choice_row
    if kind.startswith(TURNS):
        make = partial(turns_row, turns=num_turns(kind))
    return (json.dumps(make(index)) + "\n" for index in range(number))


def write_rows(path: Path, number: int, kind: str = "short") -> Path:
    with path.open("w") as stream:
        stream.writelines(rows(kind, number))
    return path
