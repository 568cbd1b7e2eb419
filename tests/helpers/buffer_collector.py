"""A collection into a buffer in a process of its own, to be killed at any time.

`python buffer_collector.py FOLDER URL NUMBER`
"""

import asyncio
import sys
from pathlib import Path

from support import Bench, row

if __name__ == "__main__":
    folder, url, number = sys.argv[1:]
    rows = [row(f"question {each}") for each in range(int(number))]
    bench = Bench(Path(folder))
    bench.model.delay_s = 0.002
    keys = {"buffer": url, "num_repeats": 2, "num_samples_in_parallel": 4}
    sys.exit(asyncio.run(bench.collect(rows, **keys)))
