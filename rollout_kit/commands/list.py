"""ng_list: what can be used, where it is from, and what it needs."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from ..authoring.catalogue import check_files, list_entries
from ..config.keys import ListConfig
from ..config.load import parse_keys
from ..config.sources import read_layers
from ..serving.nemo_gym.checkout import Gym
from .entry import print_table

CHECKOUT_KEYS = ("nemo_gym", "nemo_gym_code")

TO_DO = """
needs values: give each as +<name>=<value>, or put it into env.yaml
needs servers: add a file with a server of that name to config_paths
needs code of: its folder is not in the checkout
refused: ng_validate shows the whole reason"""


def main(words: list[str]) -> int:
    command = parse_keys(words, ListConfig)
    if command.benchmarks:
        command = command.model_copy(update={"kind": "benchmark"})
    for layer in read_layers([], Path.cwd()):  # env.yaml
        given = {key: layer.tree[key] for key in CHECKOUT_KEYS if layer.tree.get(key)}
        command = command.model_copy(update=given if command.nemo_gym is None else {})
    if command.check:
        found = list(check_files(Gym.of(command.model_dump(), Path.cwd())))
        rows = [(each.path, each.status, each.reason) for each in found]
        counts = Counter((each.path.split("/")[0], each.status) for each in found)
        total = [
            f"{place}: {number} {status}" for (place, status), number in sorted(counts.items())
        ]
    else:
        found = list_entries(command, Path.cwd())
        rows = [(each.kind, each.name, each.source, each.needs, each.about) for each in found]
        total = []
    if command.json_output:
        listed = [{k: v for k, v in asdict(each).items() if k != "about" or v} for each in found]
        print(json.dumps(listed, ensure_ascii=False))
        return 0
    total += [TO_DO] if command.check else []
    print_table(rows)
    print("\n".join(total))
    return 0
