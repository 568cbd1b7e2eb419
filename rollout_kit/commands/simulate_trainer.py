"""ng_simulate_trainer: take batches from a buffer as a trainer would."""

import sys
from collections.abc import Callable

from ..config.keys import SimulateTrainerConfig
from ..errors import ConfigError
from ..rl.buffer.opening import open_buffer
from ..rl.simulated_trainer import SimulatedTrainer
from ..serving.transport import loop
from ..types import JsonObject
from . import entry


async def simulate(
    command: SimulateTrainerConfig, on_step: Callable[[JsonObject], object]
) -> JsonObject:
    """Train until the end that the command names; returns the figures, with those of the buffer."""
    if command.buffer.startswith("memory"):
        raise ConfigError(
            "buffer: the one in memory belongs to a collection: give the URL that it shows"
        )
    async with await open_buffer(command.buffer, token=command.auth_token or "") as buffer:
        if (batch := command.batch or buffer.policy.batch) is None:
            raise ConfigError("batch: the buffer has none: add +batch=32, the groups of a step")
        trainer = SimulatedTrainer(
            buffer, batch, command.step_s, command.sync_s, command.max_staleness
        )
        figures = await trainer.train(command.steps, command.max_wait_s, on_step)
        stats = await buffer.stats()
        if command.finish:
            await buffer.finish()
        return {**figures, "buffer": stats}


def format_figures(found: JsonObject) -> str:
    """The figures in lines, for people."""
    stale = ", ".join(f"{number:,} × {lag}" for lag, number in found["staleness"].items())
    lines = [
        f"{found['steps']:,} steps, {found['groups']:,} groups in {found['elapsed_s']:.1f} s:"
        f" {found['groups_s']:.2f} groups/s",
        f"waited for groups: {found['idle_share']:.0%} of the time",
        f"staleness: {stale or 'unknown'}",
    ]
    if buffer := found.get("buffer"):
        drops = ", ".join(f"{number:,} {why}" for why, number in buffer["dropped"].items())
        lines.append(
            f"buffer: {buffer['waiting']:,} wait, {buffer['reserved']:,} are being made;"
            f" dropped: {drops or 'none'}"
        )
    return "\n".join(lines)


def main(words: list[str]) -> int:
    command = entry.parse_keys(words, SimulateTrainerConfig)

    def show(figures: JsonObject) -> None:
        if not command.json_output:
            text = f"step {figures['steps']}: {figures['groups_s']:.2f} groups/s,"
            print(f"{text} waited {figures['idle_share']:.0%}", file=sys.stderr)

    found = loop.run(simulate(command, show))
    entry.show(found, format_figures, as_json=command.json_output)
    return 0
