"""ng_simulate_trainer: load a buffer without a trainer."""

import sys

from ..config.keys.groups import SimulateTrainerConfig
from ..types import JsonObject
from . import entry


@entry.command("ng_simulate_trainer")
def main(words: list[str]) -> int:
    command = entry.parse_keys(words, SimulateTrainerConfig)
    from ..commands.simulate_trainer import format_figures, simulate  # not needed for --help
    from ..serving.transport import loop

    def show(figures: JsonObject) -> None:
        if not command.json_output:
            text = f"step {figures['steps']}: {figures['groups_s']:.2f} groups/s,"
            print(f"{text} waited {figures['idle_share']:.0%}", file=sys.stderr)

    found = loop.run(simulate(command, show))
    entry.show(found, format_figures, as_json=command.json_output)
    return 0
