"""Runs in an environment of the others: their prompts of rows, and their verdicts on answers.

Reads `{benchmark: {peer: {package: name}, shots: number, rows: [row, …], asked: [[number of row,
text], …]}}`, where `shots` are worked examples, and writes `{benchmark: {prompts: [text, …],
verdicts: [number, …]}}`. What they would download is not there: only the functions that make
samples and score answers are called.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))


def main(source, target):
    with open(source) as stream:
        given = json.load(stream)
    found = {}
    for name, one in given.items():
        [(package, theirs)] = one["peer"].items()
        module = __import__(f"child_{package}")
        found[name] = module.answer(theirs, one["rows"], one["asked"], one["shots"])
    with open(target, "w") as stream:
        json.dump(found, stream)


main(*sys.argv[1:])
