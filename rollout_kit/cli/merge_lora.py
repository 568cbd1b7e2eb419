"""ng_merge_lora: write a model with a LoRA adapter merged in."""

import sys

from ..config.keys.lora import MergeLoraConfig
from . import entry

NAME = "ng_merge_lora"


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(entry.guard(NAME, arguments, lambda: _merge(arguments)))


def _merge(arguments: list[str]) -> int:
    command = entry.parse_keys(arguments, MergeLoraConfig)
    from ..lora.merge import format_manifest, merge  # not needed for --help

    manifest = merge(command, lambda text: print(text, file=sys.stderr))
    shown = {"output": str(command.output), **manifest}
    entry.show(shown, format_manifest, as_json=command.json_output)
    return 0
