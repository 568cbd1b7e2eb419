"""How long it takes to prepare the rows of a benchmark, without the download.

    python -m benchmarks.prepare_rows

MMLU-Pro has 12,032 rows. They are made up, in its format: Parquet with its columns.
"""

import os
import tempfile
import time
from pathlib import Path
from random import Random

from pyarrow import Table, parquet

from rollout_kit.collecting.data.benchmarks.prepared import prepare_rows
from rollout_kit.types import JsonObject

NUM_ROWS = 12_032

WORDS = 40
"""Of a question; those of MMLU-Pro have about as many."""


def main() -> None:
    """Print the seconds of three preparations."""
    random = Random(0)
    rows = [_make_row(random, number) for number in range(NUM_ROWS)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = name
        parquet.write_table(Table.from_pylist(rows), folder / "rows.parquet")
        (folder / "own.yaml").write_text(
            "like: mmlu_pro\nsource: {type: file, file: rows.parquet}\n"
        )
        for _ in range(3):
            started = time.perf_counter()
            path = prepare_rows(str(folder / "own.yaml"), lambda *_: None)
            size = path.stat().st_size / 1e6
            print(f"{NUM_ROWS:,} rows, {size:.1f} MB: {time.perf_counter() - started:.2f} s")
            path.unlink()


def _make_row(random: Random, number: int) -> JsonObject:
    def write(length: int) -> str:
        return " ".join(str(random.randrange(10**6)) for _ in range(length))

    return {
        "question_id": number,
        "question": write(WORDS),
        "options": [write(6) for _ in range(10)],
        "answer": "C",
        "answer_index": 2,
        "cot_content": "",
        "category": "law",
        "src": "made",
    }


if __name__ == "__main__":
    main()
