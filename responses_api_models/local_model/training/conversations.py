"""Problems as the text that the model is trained on: ChatML, hermes-style tools."""

import json
import random
from typing import Any

from problems import Problem, add_tool, call_text

CHAT_TEMPLATE = r"""{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
{{- '# Tools\n\n<tools>' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' }}{%- if message.content %}{{- message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{{- '<tool_call>\n{"name": "' + function.name + '", "arguments": ' }}
{%- if function.arguments is string %}{{- function.arguments }}
{%- else %}{{- function.arguments | tojson }}{%- endif %}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

SYSTEMS = ("", "", "", "", "You are a helpful assistant.")

ANSWERED = "<|im_start|>assistant\n"

Parts = list[tuple[str, bool]]
"""Text by text, each with whether the model is to learn to write it."""


def conversation(rng: random.Random, problem: Problem) -> tuple[list[Any], list[Any] | None]:
    """Messages and tools. A tool's result may be any number: the answer is what the tool said."""
    system = rng.choice(SYSTEMS)
    messages: list[Any] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": problem.text})
    if problem.skill != "tool":
        messages.append({"role": "assistant", "content": problem.response})
        return messages, None
    a, b = problem.numbers
    said = problem.value if rng.random() < 0.4 else str(rng.randrange(10 ** rng.randrange(1, 6)))
    call = {"name": "add", "arguments": json.dumps({"a": a, "b": b})}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [{"function": call}]},
        {"role": "tool", "content": said},
        {"role": "assistant", "content": problem.answer(said)},
    ]
    return messages, [add_tool(rng)]


def parts(messages: list[Any], tools: list[Any] | None) -> Parts:
    """What the template renders, cut where the model's own words begin and end."""
    found: Parts = []
    context = _head(messages, tools)
    for message in messages:
        if message["role"] == "assistant":
            found.append((context + ANSWERED, False))
            found.append((_own_words(message) + "<|im_end|>", True))
            context = "\n"
        elif message["role"] == "tool":
            said = message["content"]
            context += f"<|im_start|>user\n<tool_response>\n{said}\n</tool_response><|im_end|>\n"
        elif message["role"] == "user":
            context += f"<|im_start|>user\n{message['content']}<|im_end|>\n"
    return found


def _head(messages: list[Any], tools: list[Any] | None) -> str:
    first = messages[0]
    words = [first["content"]] if first["role"] == "system" else []
    if tools:
        listed = "\n".join(json.dumps(tool) for tool in tools)
        words.append(f"# Tools\n\n<tools>\n{listed}\n</tools>")
    text = "\n\n".join(words)
    return f"<|im_start|>system\n{text}<|im_end|>\n" if words else ""


def _own_words(message: Any) -> str:
    if "tool_calls" not in message:
        return message["content"]
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    return call_text(**arguments)
