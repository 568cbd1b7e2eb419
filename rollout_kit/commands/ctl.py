"""ng_ctl: list running collections, and steer them."""

import time
from typing import Any

from ..collecting.live import client
from ..collecting.live.shown import format_changes, format_list, request_of
from ..config.keys import CtlConfig
from ..errors import ConfigError, suggest
from . import entry

WORDS = {"pause": "+paused=true", "resume": "+paused=false", "stop": "+stop=true"}

POLL_S = 0.2


def main(words: list[str]) -> int:
    command = entry.parse_keys([_read(word) for word in words], CtlConfig)

    request = request_of(command)
    if not request["steer"] and command.output_jsonl_fpath is None and command.run_id is None:
        found = client.find_collections()
        listed = [each.reply["snapshot"] for each in found if each.reply]
        problems = [each.problem for each in found if not each.reply]
        shown: Any = {"collections": listed, "problems": problems}
        entry.show(shown, format_list, as_json=command.json_output)
        return 0
    note = client.choose(command.output_jsonl_fpath, command.run_id)
    reply = client.ask(note, request)
    while command.wait and reply["state"] == "pausing":
        time.sleep(POLL_S)
        reply |= {name: client.ask(note, {})[name] for name in ("state", "snapshot")}
    if not request["steer"]:
        listed = {"collections": [reply["snapshot"]], "problems": []}
        entry.show(listed, format_list, as_json=command.json_output)
    else:
        entry.show(reply, format_changes, as_json=command.json_output)
    return 0


def _read(word: str) -> str:
    """A word as a key: `pause`, `parallelism=64` and `+parallelism=64` are the same as in YAML."""
    if word.startswith(("+", "-", "~")):
        return word
    if "=" in word:
        return f"+{word}"
    if word not in WORDS:
        raise ConfigError(
            f"{word}: expected pause, resume, stop, or a key with its value{suggest(word, WORDS)}"
        )
    return WORDS[word]
