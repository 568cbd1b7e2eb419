"""The states that inspect_evals' scorers get; runs in its environment."""

from importlib import import_module

task_state = import_module("inspect_ai.solver._task_state")
scorers = import_module("inspect_ai.scorer")
models = import_module("inspect_ai.model")


def make_states(samples, asked):
    """For each answer, as number of its sample and text: a state with it, and the target."""
    for at, text in asked:
        sample = samples[at]
        target = scorers.Target(sample.target)
        state = task_state.TaskState(
            model="mock/m",
            sample_id=0,
            epoch=0,
            input=sample.input,
            messages=[],
            target=target,
            choices=sample.choices,
            output=models.ModelOutput.from_content("mock/m", text),
            metadata=sample.metadata,
        )
        yield state, target
