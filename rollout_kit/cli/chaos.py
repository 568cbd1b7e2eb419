"""ng_chaos: collect while killing what collects, then check that nothing is lost or made up."""

import json
import sys

from . import entry


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    sys.exit(entry.run("ng_chaos", argv, lambda config: _chaos(config, argv)))


def _chaos(config, argv: list[str]) -> int:
    from ..chaos.chaos import chaos  # the pipeline is not needed to print the help

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    report = chaos(config, argv, say)
    if config.command.json_output:
        print(json.dumps(report.figures(), ensure_ascii=False))
    else:
        print("\n".join(report.lines()))
    return 0 if report.holds else entry.FAILED
