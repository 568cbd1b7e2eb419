"""ng_check_rollouts: find rollouts whose reward cannot be trusted."""

import sys

from ..analysis.health.health import check_files, format_health, write_verdicts
from ..config.keys import CheckRolloutsConfig
from . import entry
from .entry import FAILED


def main(words: list[str]) -> int:
    """Exit code 1 if more rollouts than allowed are unhealthy."""
    command = entry.parse_plain(words, CheckRolloutsConfig)
    health = check_files(command)
    if command.verdicts_fpath is not None:
        write_verdicts(health, command.verdicts_fpath)
    found = health.as_json(command.num_examples)
    entry.show(found, format_health, as_json=command.json_output)
    share, most = health.count("unhealthy") / found["rollouts"], command.max_unhealthy_fraction
    if most is None or share <= most:
        return 0
    print(f"{share:.1%} of the rollouts are unhealthy; allowed are {most:.1%}", file=sys.stderr)
    return FAILED
