"""ng_init_resources_server: create the folder of a new environment."""

from ..authoring.scaffold import write_server
from ..config.keys import EntrypointConfig
from . import entry


def main(words: list[str]) -> int:

    entrypoint = entry.parse_keys(words, EntrypointConfig).entrypoint
    paths = write_server(entrypoint)
    for path in paths:
        print(f"wrote {path}")
    print(f"\nWrite your rule into {paths[0]} and your rows into {paths[2]}. Then run:")
    print(f"  ng_test +entrypoint={entrypoint}")
    return 0
