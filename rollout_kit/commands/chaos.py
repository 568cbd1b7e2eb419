"""ng_chaos: kill a collection repeatedly, then check that no data is lost or invented."""

import json
import sys

from ..authoring.chaos.chaos import chaos
from ..config.keys import ChaosConfig
from . import entry


def main(words: list[str]) -> int:
    config = entry.load(words, ChaosConfig)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    report = chaos(config, words, say)
    if config.command.json_output:
        print(json.dumps(report.figures(), ensure_ascii=False))
    else:
        print("\n".join(report.lines()))
    return 0 if report.holds else entry.FAILED
