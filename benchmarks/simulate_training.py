"""`ng_simulate_training` against real runs: rollouts are recorded once, four settings are predicted
from them, and each is run with `local_model` and a trainer that only waits.

python -m benchmarks.simulate_training [--runs 5] [--steps 12] [--json FILE]    # a quiet machine
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rollout_kit as rk
from rollout_kit.rl import BufferPolicy, MemoryBuffer, collect
from rollout_kit.rl.simulated_trainer import SimulatedTrainer
from rollout_kit.rl.simulation.recording import Recording, fit_speed, read_recording
from rollout_kit.rl.simulation.training import TrainingSetup, predict

ROOT = Path(__file__).resolve().parent.parent
TASKS = ROOT / "responses_api_models/local_model/data/demo.jsonl"

RECORDED, MEMBERS = 200, 4
"""Rollouts of the recording, and of a group."""

PLACES = 1
"""Calls that `local_model` computes at a time: its default."""

BARS = {"rollouts_per_s": 0.10, "rollout_p95_s": 0.15}
"""Most that a prediction may be off, as a share of the median of the real runs."""


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    batch: int
    staleness: int
    step_s: float
    parallel: int


SETTINGS = (
    Setting("synchronous", batch=16, staleness=0, step_s=1.0, parallel=32),
    Setting("one step behind", batch=16, staleness=1, step_s=1.0, parallel=32),
    Setting("the trainer is slow", batch=8, staleness=2, step_s=3.0, parallel=16),
    Setting("few in flight", batch=8, staleness=1, step_s=0.5, parallel=8),
)


async def record(folder: Path) -> Recording:
    """Rollouts of an ordinary collection with one place."""
    output = folder / "recorded.jsonl"
    async with rk.servers(ROOT / "configs/demo.yaml") as servers:
        await rk.collect(
            TASKS,
            servers=servers,
            output=output,
            num_repeats=MEMBERS,
            limit=RECORDED // MEMBERS,
            num_samples_in_parallel=16,
            responses_create_params={"temperature": 1},
        )
    return read_recording(output)


async def run(setting: Setting, steps: int, output: Path) -> dict[str, float]:
    """A real run of a setting."""
    policy = BufferPolicy(batch=setting.batch, staleness=setting.staleness)
    buffer = MemoryBuffer(policy)
    trainer = SimulatedTrainer(buffer, setting.batch, setting.step_s)
    async with buffer, rk.servers(ROOT / "configs/demo.yaml") as servers:
        collecting = collect(
            servers,
            TASKS,
            buffer=buffer,
            output=output,
            num_repeats=MEMBERS,
            num_samples_in_parallel=setting.parallel,
            responses_create_params={"temperature": 1},
        )

        async def train() -> dict[str, Any]:
            found = await trainer.train(steps)
            await buffer.finish()
            return found

        training = asyncio.create_task(train())
        async for _ in collecting:
            pass
        figures = await training
    seconds = [each.info.duration_s for each in rk.load(output) if each.info.duration_s]
    return {
        "rollouts_per_s": figures["groups_s"] * MEMBERS,
        "rollout_p95_s": statistics.quantiles(seconds, n=20, method="inclusive")[-1],
    }


def compare(
    setting: Setting, recording: Recording, steps: int, runs: list[dict[str, float]]
) -> Any:
    setup = TrainingSetup(
        fit_speed(recording.spans, places=PLACES),
        places=PLACES,
        batch=setting.batch,
        group_size=MEMBERS,
        staleness=setting.staleness,
        parallel=setting.parallel,
        step_s=setting.step_s,
        steps=steps,
    )
    predicted = predict(recording.groups, setup)
    found: dict[str, Any] = {"setting": asdict(setting), "runs": runs}
    for name, bar in BARS.items():
        real, said = statistics.median(each[name] for each in runs), getattr(predicted, name)
        found[name] = {"predicted": said, "real": real, "error": said / real - 1, "bar": bar}
    return found


async def measure(args: argparse.Namespace) -> list[Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recording = await record(folder)
        token_s = fit_speed(recording.spans, places=PLACES).alone_s
        print(f"recorded: {recording.num_rollouts} rollouts, {token_s * 1e6:.0f} µs a token")
        print("| setting | rollouts/s: predicted | real | error | p95: predicted | real | error |")
        print("|---|---|---|---|---|---|---|", flush=True)
        found = []
        for setting in SETTINGS:
            runs = [
                await run(setting, args.steps, folder / f"{setting.name} {number}.jsonl")
                for number in range(args.runs)
            ]
            found.append(await asyncio.to_thread(compare, setting, recording, args.steps, runs))
            rate, p95 = (found[-1][name] for name in BARS)
            print(
                f"| {setting.name} | {rate['predicted']:.1f} | {rate['real']:.1f} |"
                f" {rate['error']:+.1%} | {p95['predicted']:.3f} s | {p95['real']:.3f} s |"
                f" {p95['error']:+.1%} |",
                flush=True,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5, help="real runs of each setting")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    found = asyncio.run(measure(args))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    worst = [each[name] for each in found for name in BARS]
    held = sum(abs(each["error"]) <= each["bar"] for each in worst)
    print(
        f"{held} of {len(worst)} figures are within their bars: 10 % of the rate, 15 % of the p95"
    )


if __name__ == "__main__":
    main()
