"""Makes rollouts of NeMo Gym with its own models: `python of_nemo_gym.py FILE NUM_ROLLOUTS`.

It runs in NeMo Gym's own environment. Rollouts have text, parallel calls, reasoning, an image, a
cut answer and 100 turns, in turn, with token ids and the record of a trajectory.
"""

import sys
from pathlib import Path

import orjson
from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.openai_utils import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.rollout_observability import TrajectoryRecord

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def message(text, **tokens):
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "msg", "type": "message", "role": "assistant", "status": "completed"}
    return {**item, "content": [part], **tokens}


def output_of(number):
    kind = number % 6
    tokens = {
        "prompt_token_ids": [1, 2],
        "generation_token_ids": [3, 4],
        "generation_log_probs": [-0.5, -0.25],
    }
    if kind == 1:
        for each in range(2):
            call = {
                "name": "add",
                "arguments": '{"a":  1}',
                "call_id": f"c{each}",
                "id": f"f{each}",
            }
            yield {"type": "function_call", "status": "completed", **call}
        for each in range(2):
            yield {"type": "function_call_output", "call_id": f"c{each}", "output": "2"}
    if kind == 2:
        thought = [{"type": "summary_text", "text": "thinking"}]
        yield {"type": "reasoning", "id": "r", "summary": thought}
    for each in range(99 if kind == 5 else 0):
        yield message(f"turn {each}")
        yield {"type": "message", "role": "user", "content": "More."}
    yield message(str(number), **tokens)


def rollout(number):
    text = {"type": "input_text", "text": f"question {number}"}
    image = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
    asked = [text, image] if number % 6 == 3 else f"question {number}"
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
    params = {"input": [{"role": "user", "content": asked}], "tools": [tool], "temperature": 0.5}
    usage = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
    usage |= {"input_tokens_details": {"cached_tokens": 4}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
    cut = {"reason": "max_output_tokens"} if number % 6 == 4 else None
    response = NeMoGymResponse.model_validate(
        {
            **{"id": f"resp_{number}", "created_at": 1.0, "model": "m", "object": "response"},
            **{"output": list(output_of(number)), "usage": usage, "incomplete_details": cut},
            **{"parallel_tool_calls": True, "tool_choice": "auto", "tools": [tool]},
        }
    )
    made = BaseVerifyResponse(
        responses_create_params=NeMoGymResponseCreateParamsNonStreaming.model_validate(params),
        response=response,
        reward=float(number % 2),
    ).model_dump(mode="json")
    identity = {"task_id": str(number), "rollout_id": f"{number}-0"}
    calls = [
        {
            "model_call_id": f"call-{number}",
            "duration_ms": 1500.0,
            "token_stats": {"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 4},
            "response_metadata": {"finish_reason": "stop", "status_code": 200},
        }
    ]
    record = {**identity, "turns": [], "model_calls": calls, "gaps": [], "invocations": []}
    TrajectoryRecord.model_validate(record)
    made |= {"expected_answer": str(number), "length": number, "ng_trajectory": record}
    place = {"_ng_task_index": number, "_ng_rollout_index": 0}
    return {**made, **place, "agent_ref": {"type": "responses_api_agents", "name": "solver"}}


def main(path, number):
    with path.open("wb") as file:
        for each in range(number):
            file.write(orjson.dumps(rollout(each)) + b"\n")


main(Path(sys.argv[1]), int(sys.argv[2]))
