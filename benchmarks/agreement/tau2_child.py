"""Runs in an environment of inspect_evals: the states after sequences of calls of its tools.

Reads `{desk: [[[name, arguments], …], …]}` and writes, for each sequence, whether each call was
refused, and the records that were used as they are in the end. What inspect_evals needs to download
datasets is replaced.
"""

import json
import sys
from copy import deepcopy
from importlib import import_module

from replaced_packages import replace

MISSING = ("inspect_evals_utils", "huggingface_hub", "datasets", "toml", "PIL", "backoff")


class Lazy(dict):
    """A table whose records are copied when they are used, so that the next sequence finds them as
    they were."""

    def __init__(self, records):
        super().__init__(records)
        self.used = set()

    def __getitem__(self, key):
        if key not in self.used:
            super().__setitem__(key, deepcopy(super().__getitem__(key)))
            self.used.add(key)
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.used.add(key)


def main(source, target):
    replace(*MISSING, is_first=False)
    with open(source) as stream:
        given = json.load(stream)
    found = {desk: judge_all(desk, sequences) for desk, sequences in given.items()}
    with open(target, "w") as stream:
        json.dump(found, stream)


def judge_all(desk, sequences):
    name = f"{desk.title()}AgentTools"
    module = import_module(f"inspect_evals.tau2.{desk}.{name}")
    tools = getattr(module, name)(instance="compared")
    tools.initialize()
    shared = {table: dict(getattr(tools.db, table)) for table in type(tools.db).model_fields}
    found = []
    for calls in sequences:
        tables = {table: Lazy(records) for table, records in shared.items()}
        for table, records in tables.items():
            setattr(tools.db, table, records)
        refused = [is_refused(tools, *call) for call in calls]
        state = {
            table: {key: records[key].model_dump() for key in sorted(records.used)}
            for table, records in tables.items()
        }
        found.append([refused, state])
    return found


def is_refused(tools, name, arguments):
    try:
        getattr(tools, name)(**arguments)
    except Exception as error:
        return type(error).__name__
    return ""


main(*sys.argv[1:])
