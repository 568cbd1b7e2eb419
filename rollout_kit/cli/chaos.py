"""ng_chaos: kill a collection repeatedly, then check that no data is lost or invented."""

import json
import sys

from . import entry


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    sys.exit(entry.run("ng_chaos", argv, lambda config: _chaos(config, argv)))


def _chaos(config, argv: list[str]) -> int:
    from ..chaos.chaos import chaos  # not needed for --help

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    report = chaos(config, argv, say)
    if config.command.json_output:
        print(json.dumps(report.figures(), ensure_ascii=False))
    else:
        print("\n".join(report.lines()))
    return 0 if report.holds else entry.FAILED
