"""ng_chaos: kill a collection repeatedly, then check that no data is lost or invented."""

import json
import sys

from ..config.keys.commands import ChaosConfig
from . import entry


@entry.command("ng_chaos")
def main(words: list[str]) -> int:
    config = entry.load(words, ChaosConfig)
    from ..authoring.chaos.chaos import chaos  # not needed for --help

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    report = chaos(config, words, say)
    if config.command.json_output:
        print(json.dumps(report.figures(), ensure_ascii=False))
    else:
        print("\n".join(report.lines()))
    return 0 if report.holds else entry.FAILED
