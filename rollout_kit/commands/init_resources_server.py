"""ng_init_resources_server: create the folder of a new environment."""

import sys

from ..authoring.scaffold import KINDS, EnvironmentKind, write_server
from ..config.keys import InitConfig
from . import entry


def main(words: list[str]) -> int:
    given = entry.parse_keys(words, InitConfig)
    entrypoint = given.entrypoint
    paths = write_server(entrypoint, given.kind or _ask_kind())
    for path in paths:
        print(f"wrote {path}")
    print(f"\nWrite your rule into {paths[0]} and your rows into {paths[2]}. Then run:")
    print(f"  ng_test +entrypoint={entrypoint}")
    return 0


def _ask_kind() -> EnvironmentKind:
    """The kind that the user chooses at a terminal; without one, an answer check."""
    names = list(KINDS)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return names[0]
    for number, (name, what) in enumerate(KINDS.items(), 1):
        print(f"  {number}  {name:<7} {what}")
    while True:
        said = input(f"Which kind of environment? [{names[0]}] ").strip() or names[0]
        for number, name in enumerate(names, 1):
            if said in (name, f"{number}"):
                return name
        print(f"Type one of {', '.join(names)}, or a number from 1 to {len(names)}.")
