"""Writes the benchmark's rows beside this file."""

import json
from pathlib import Path

import nemo_gym

PLACE = Path(__file__).parent / "data" / "letters.jsonl"


def prepare() -> Path:
    assert nemo_gym.__doc__
    PLACE.parent.mkdir(exist_ok=True)
    rows = [{"letter": one, "expected_answer": chr(ord(one) + 1)} for one in "abc"]
    PLACE.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PLACE


if __name__ == "__main__":
    prepare()
