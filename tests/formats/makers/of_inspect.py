"""Makes real logs of inspect with its mock model: `python of_inspect.py FOLDER NUM_SAMPLES`.

It runs in inspect's own environment. Samples have text, tools, parallel calls, reasoning, an image,
a wrong answer and a failure, in turn.
"""

import sys

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.model._model_output import ChatCompletionChoice
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import ToolCall, tool

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "YPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


@tool
def add():
    async def execute(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        if a < 0:
            raise ValueError("a is negative")
        return str(a + b)

    return execute


def said(content, calls=None, tokens=7):
    message = ChatMessageAssistant(content=content, tool_calls=calls, source="generate")
    stop = "tool_calls" if calls else "stop"
    return ModelOutput(
        model="mockllm/model",
        choices=[ChatCompletionChoice(message=message, stop_reason=stop)],
        usage=ModelUsage(input_tokens=11, output_tokens=tokens, total_tokens=11 + tokens),
    )


def call(number, a, b):
    return ToolCall(id=f"call_{number}", function="add", arguments={"a": a, "b": b})


def plan(number):
    """The question, the answers of the model, and the target of a sample."""
    kind = number % 6
    if kind == 0:
        return f"What is {number} + 1?", [said(f"{number + 1}")], f"{number + 1}"
    if kind == 1:
        calls = [call(f"{number}_0", number, 1), call(f"{number}_1", number, 2)]
        return "Add twice.", [said("I add.", calls), said(f"{number + 2}")], f"{number + 2}"
    if kind == 2:
        thought = ContentReasoning(reasoning=f"thinking of {number}", signature="c2ln")
        return "Think.", [said([thought, ContentText(text="42")])], "42"
    if kind == 3:
        asked = [ChatMessageUser(content=[ContentText(text="See"), ContentImage(image=PIXEL)])]
        return asked, [said("a pixel")], "nothing"
    if kind == 4:
        return "Add.", [said("", [call(number, -1, 2)]), said("it fails")], "1"
    return "Fail.", [], "1"


def main(folder, number):
    samples, outputs = [], {}
    for each in range(number):
        asked, answers, target = plan(each)
        outputs[f"task-{each}"] = answers
        samples.append(Sample(id=f"task-{each}", input=asked, target=target, metadata={"n": each}))
    flat = [answer for answers in outputs.values() for answer in answers]
    for form in ("eval", "json"):
        eval(
            Task(dataset=samples, solver=[use_tools(add()), generate()], scorer=match()),
            model=get_model("mockllm/model", custom_outputs=iter(flat)),
            max_samples=1,
            max_connections=1,
            log_dir=folder,
            log_format=form,
            fail_on_error=False,
            display="none",
        )


main(sys.argv[1], int(sys.argv[2]))
