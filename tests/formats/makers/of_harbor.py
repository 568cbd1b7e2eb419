"""Makes a real job of Harbor with its own models: `python of_harbor.py FOLDER NUM_TRIALS`.

It runs in Harbor's own environment. The tasks have the names and answers of those of `of_inspect`.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from harbor.models.trajectories import (
    Agent,
    FinalMetrics,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    ToolCall,
    Trajectory,
)
from harbor.models.trajectories.content import ContentPart, ImageSource
from harbor.models.trial.result import AgentInfo, ExceptionInfo, ModelInfo, TrialResult
from harbor.models.verifier.result import VerifierResult

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def answer(number, message, **more):
    metrics = Metrics(
        prompt_tokens=11,
        completion_tokens=2,
        cached_tokens=4,
        cost_usd=0.001,
        prompt_token_ids=[1, 2, 3],
        completion_token_ids=[4, 5],
        logprobs=[-0.5, -0.25],
        extra={"temperature": 1},
    )
    stamp = "2026-11-27T12:00:01Z"
    return Step(
        step_id=number, source="agent", message=message, metrics=metrics, timestamp=stamp, **more
    )


def trajectory(number):
    kind, asked = number % 6, "Add twice."
    if kind == 3:
        source = ImageSource(media_type="image/png", path="images/pixel.png")
        asked = [ContentPart(type="text", text="See"), ContentPart(type="image", source=source)]
    steps = [
        Step(step_id=1, source="system", message="You add."),
        Step(step_id=2, source="user", message=asked),
    ]
    if kind == 1:
        calls = [
            ToolCall(tool_call_id=f"c{each}", function_name="add", arguments={"a": each})
            for each in range(2)
        ]
        seen = [ObservationResult(source_call_id=f"c{each}", content=str(each)) for each in (0, 1)]
        steps.append(answer(3, "I add.", tool_calls=calls, observation=Observation(results=seen)))
    elif kind == 4:
        seen = Observation(results=[ObservationResult(content="exit 1")])
        steps.append(answer(3, "ls", observation=seen))
    if kind != 5:
        thought = "thinking" if kind == 2 else None
        steps.append(answer(len(steps) + 1, str(number), reasoning_content=thought))
    tool = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    return Trajectory(
        session_id=f"session-{number}",
        agent=Agent(
            name="terminus-2",
            version="2.0",
            model_name="mock",
            tool_definitions=[{"type": "function", "function": tool}],
        ),
        steps=steps,
        notes="made by a test",
        final_metrics=FinalMetrics(total_prompt_tokens=22, total_completion_tokens=4),
    )


def main(folder, number):
    for each in range(number):
        trial = folder / f"task-{each}__x"
        (trial / "agent").mkdir(parents=True)
        (trial / "agent" / "trajectory.json").write_text(
            trajectory(each).model_dump_json(exclude_none=True, indent=1)
        )
        failed = each % 6 == 5
        error = ExceptionInfo(
            exception_type="AgentTimeoutError",
            exception_message="too slow",
            exception_traceback="",
            occurred_at=NOW,
        )
        result = TrialResult.model_construct(
            task_name=f"task-{each}",
            trial_name=trial.name,
            trial_uri="file:///trial",
            task_checksum="0",
            agent_info=AgentInfo(
                name="terminus-2", version="2.0", model_info=ModelInfo(name="mock", provider="test")
            ),
            verifier_result=None if failed else VerifierResult(rewards={"reward": each % 2}),
            exception_info=error if failed else None,
            started_at=NOW,
            finished_at=NOW,
        )
        (trial / "result.json").write_text(result.model_dump_json(exclude_none=True, indent=1))
    (folder / "result.json").write_text(f'{{"n_total_trials": {number}}}')


main(Path(sys.argv[1]), int(sys.argv[2]))
