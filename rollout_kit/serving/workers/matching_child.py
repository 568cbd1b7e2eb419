"""The process of `matching`, run by path; standard library only. It ends with its parent.

`python -S matching_child.py PARENT_PID`. The first line that it reads is the pattern.
"""

import json
import os
import re
import sys
from zlib import crc32

from child import confine, die_with  # type: ignore[import-not-found]  # pyright: ignore


def main(parent: str) -> None:
    die_with(int(parent))
    confine()
    text, ignores_case = json.loads(sys.stdin.buffer.readline())
    search = re.compile(text.encode(), re.IGNORECASE if ignores_case else 0).search
    for asked in sys.stdin.buffer:
        path, places = json.loads(asked)
        found, changed = [], None
        for number, (offset, length, check) in enumerate(places):
            raw = read(path, offset, length)
            if crc32(raw) != check:
                changed = number
                break
            if search(raw):
                found.append(number)
        sys.stdout.write(json.dumps([found, changed]) + "\n")
        sys.stdout.flush()


def read(path: str, offset: int, length: int) -> bytes:
    try:
        with open(path, "rb") as stream:
            return os.pread(stream.fileno(), length, offset)
    except OSError:
        return b""


if __name__ == "__main__":
    main(*sys.argv[1:])
