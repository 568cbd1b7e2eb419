"""ng_merge_lora: write a model with a LoRA adapter merged in."""

import sys

from ..config.keys import MergeLoraConfig
from ..rl.lora.merge import format_manifest, merge
from . import entry


def main(words: list[str]) -> int:
    command = entry.parse_keys(words, MergeLoraConfig)
    manifest = merge(command, lambda text: print(text, file=sys.stderr))
    shown = {"output": str(command.output), **manifest}
    entry.show(shown, format_manifest, as_json=command.json_output)
    return 0
