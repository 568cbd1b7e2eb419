"""ng_check_tokens: compare the log-probs of rollouts with those that the policy gives the same
tokens."""

import sys

from ..config.keys import CheckTokensConfig
from ..rl.checking import check_file, format_check
from ..serving.transport import loop
from . import entry


def main(words: list[str]) -> int:
    config = entry.load(words, CheckTokensConfig)
    found = loop.run(check_file(config, lambda text, **fields: print(text, file=sys.stderr)))
    entry.show(found, format_check, as_json=config.command.json_output)
    return 1 if found.get("mismatched") else 0
