"""ng_simulate_training: predict a training run from recorded rollouts."""

from dataclasses import asdict

from ..config.keys import SimulateTrainingConfig
from ..rl.simulation.recording import Recording, TokenSpeed, fit_speed, read_recording
from ..rl.simulation.training import TrainingSetup, predict
from ..types import JsonObject
from . import entry


def simulate(command: SimulateTrainingConfig) -> JsonObject:
    """The figures of the configuration, with those of the recording."""
    recording = read_recording(command.input_jsonl_fpath, command.limit)
    setup = TrainingSetup(
        speed=find_speed(command, recording),
        replicas=command.num_replicas,
        places=command.places,
        batch=command.batch,
        group_size=command.num_repeats or recording.group_size,
        staleness=command.staleness,
        filters=tuple(command.filters),
        parallel=command.num_samples_in_parallel,
        step_s=command.step_s,
        sync_s=command.sync_s,
        steps=command.steps,
        replica_usd=command.replica_usd,
        trainer_usd=command.trainer_usd,
        seed=command.seed,
    )
    recorded = {
        "num_rollouts": recording.num_rollouts,
        "num_groups": len(recording.groups),
        "is_cut": recording.is_cut,
        "token_s": setup.speed.alone_s,
        "token_s_each": setup.speed.each_s,
    }
    return {"recording": recorded, **asdict(predict(recording.groups, setup))}


def find_speed(command: SimulateTrainingConfig, recording: Recording) -> TokenSpeed:
    if command.token_s is not None:
        return TokenSpeed(command.token_s)
    places = command.recorded_places or command.places
    return fit_speed(recording.spans, places, command.recorded_replicas)


def format_prediction(found: JsonObject) -> str:
    """The figures in lines, for people."""
    recorded, full_s, last_s = found["recording"], found["full_s"], found["last_part_s"]
    more_s = recorded["token_s_each"]
    each = f", and {more_s:.2g} s for each sequence of its replica" if more_s else ""
    stale = ", ".join(f"{number:,} × {lag}" for lag, number in sorted(found["staleness"].items()))
    waste = ", ".join(f"{name} {share:.1%}" for name, share in found["waste"].items())
    first = "the first " if recorded["is_cut"] else ""
    lines = [
        f"recorded: {first}{recorded['num_rollouts']:,} rollouts"
        f" in {recorded['num_groups']:,} groups;"
        f" a token took {recorded['token_s']:.2g} s{each}",
        f"a step: {found['step_s']:.1f} s; {found['rollouts_per_s']:.2f} rollouts/s and"
        f" {found['tokens_per_s']:,.0f} tokens/s are trained on",
        f"a rollout: {found['rollout_p50_s']:.1f} s (p50), {found['rollout_p95_s']:.1f} s (p95),"
        f" {found['rollout_max_s']:.1f} s at most; the last 5 % of a step: {last_s:.1f} s",
        f"the trainer waits {found['trainer_waits']:.0%} of the time;"
        f" the replicas are busy for {found['replicas_busy']:.0%}",
        "all places are taken "
        + ("in no step" if full_s is None else f"{full_s:.1f} s after an update"),
        f"staleness: {stale}",
        f"tokens: {waste}",
    ]
    if recorded["is_cut"]:
        lines.insert(1, "the file has more rollouts: +limit= reads as many as you say")
    if found["cost_usd"]:
        lines.append(
            f"cost: ${found['cost_usd']:,.2f} for {found['steps']:,} steps,"
            f" ${found['usd_per_1000']:,.2f} for 1,000 rollouts that are trained on"
        )
    return "\n".join(lines)


def main(words: list[str]) -> int:
    command = entry.parse_keys(words, SimulateTrainingConfig)
    entry.show(simulate(command), format_prediction, as_json=command.json_output)
    return 0
