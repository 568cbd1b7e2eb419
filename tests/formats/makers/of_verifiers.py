"""Makes real results of verifiers with its own models: `python of_verifiers.py FOLDER NUMBER`.

It runs in an environment with verifiers, whose own loader reads them in the end. Episodes have
text, parallel calls, reasoning, an image, an error and 100 turns, in turn.
"""

import sys
from pathlib import Path

from verifiers.v1.agent import AgentConfig
from verifiers.v1.episode import EnvInfo, Episode
from verifiers.v1.graph import MessageNode
from verifiers.v1.state import State
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import (
    AgentInfo,
    Error,
    ModelCall,
    Reward,
    TimeSpan,
    Trace,
    TraceTask,
)
from verifiers.v1.types import (
    AssistantMessage,
    ImageUrlContentPart,
    ImageUrlSource,
    SystemMessage,
    TextContentPart,
    Tool,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from verifiers.v1.utils.trace_store import read_episodes, write_episode

OurTrace = Trace[WireTaskData, State, AgentConfig]

PIXEL = "data:image/png;base64,iVBORw0KGgo="
ADD = Tool(name="add", description="Adds.", parameters={"type": "object"})


def turns_of(number):
    """What the model and its tools say."""
    kind = number % 6
    if kind == 1:
        calls = [ToolCall(id=f"c{each}", name="add", arguments='{"a":  1}') for each in range(2)]
        outputs = [ToolMessage(tool_call_id=each.id, content="2") for each in calls]
        yield AssistantMessage(content="I add.", tool_calls=calls), outputs
    if kind == 2:
        yield AssistantMessage(content="42", reasoning_content="thinking"), []
        return
    for each in range(99 if kind == 5 else 0):
        yield AssistantMessage(content=f"turn {each}"), [UserMessage(content="More.")]
    yield AssistantMessage(content=str(number)), []


def trace_of(number):
    text = TextContentPart(text=f"question {number}")
    image = ImageUrlContentPart(image_url=ImageUrlSource(url=PIXEL))
    asked = [text, image] if number % 6 == 3 else text.text
    nodes = [
        MessageNode(
            message=SystemMessage(content="You add."), tools=[ADD], token_ids=[1], mask=[0]
        ),
        MessageNode(parent=0, message=UserMessage(content=asked), token_ids=[2], mask=[0]),
    ]
    calls = []
    for said, then in turns_of(number):
        own = {"token_ids": [3, 4, 5], "mask": [0, 1, 1], "logprobs": [-0.5, -0.25]}
        nodes.append(MessageNode(parent=len(nodes) - 1, message=said, sampled=True, **own))
        calls.append(
            ModelCall(
                node=len(nodes) - 1,
                model="m",
                finish_reason="stop",
                usage=Usage(prompt_tokens=9, completion_tokens=2, cached_input_tokens=4, cost=0.5),
                time=TimeSpan(start=100.0 + len(calls), end=100.5 + len(calls)),
            )
        )
        for each in then:
            node = MessageNode(parent=len(nodes) - 1, message=each, token_ids=[6], mask=[0])
            nodes.append(node)
    failed = number % 6 == 4
    trace = OurTrace(
        task=TraceTask(
            type="Sum", data=WireTaskData(idx=number, answer=str(number)), key=f"task-{number}"
        ),
        agent=AgentInfo(name="solver", config=AgentConfig(model="m")),
        nodes=nodes,
        calls=calls,
        rewards={
            "right": None if failed else Reward(score=number % 2, weight=0.5),
            "form": Reward(score=1.0, weight=0.5),
        },
        metrics={"length": float(number)},
        errors=[Error(type="ToolError", message="too slow")] if failed else [],
        is_completed=True,
        ok=not failed,
        stop_condition="done",
    )
    trace.timing.start = 99.0
    return trace


def main(folder, number):
    folder.mkdir()
    for each in range(number):
        trace = trace_of(each)
        episode = Episode(env=EnvInfo(id="sums"), task=trace.task, traces=[trace], ok=trace.ok)
        write_episode(folder, episode)
    assert len(read_episodes(folder, OurTrace)) == number


main(Path(sys.argv[1]), int(sys.argv[2]))
