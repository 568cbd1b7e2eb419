"""ng_init_resources_server: create the folder of a new environment."""

import sys

from ..config.keys.commands import EntrypointConfig
from .entry import flags, guarded

NAME = "ng_init_resources_server"


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(guarded(NAME, arguments, lambda: create_folder(arguments)))


def create_folder(arguments: list[str]) -> int:
    from ..authoring.scaffold import write_server

    entrypoint = flags(arguments, EntrypointConfig).entrypoint
    paths = write_server(entrypoint)
    for path in paths:
        print(f"wrote {path}")
    print(f"\nWrite your rule into {paths[0]} and your rows into {paths[2]}. Then run:")
    print(f"  ng_test +entrypoint={entrypoint}")
    return 0
