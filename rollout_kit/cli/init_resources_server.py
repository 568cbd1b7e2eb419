"""ng_init_resources_server: a folder for an environment of one's own."""

import sys

from ..config.keys.commands import EntrypointConfig
from .entry import flags, guarded

NAME = "ng_init_resources_server"


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(guarded(NAME, arguments, lambda: begin(arguments)))


def begin(arguments: list[str]) -> int:
    from ..authoring.scaffold import written

    entrypoint = flags(arguments, EntrypointConfig).entrypoint
    paths = written(entrypoint)
    for path in paths:
        print(f"wrote {path}")
    print(f"\nYour own rule goes into {paths[0]}, your rows into {paths[2]}. Then:")
    print(f"  ng_test +entrypoint={entrypoint}")
    return 0
