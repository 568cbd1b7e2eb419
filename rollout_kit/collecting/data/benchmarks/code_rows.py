"""Rows of benchmarks with code: LiveCodeBench's tests, and MBPP's as programs.

LiveCodeBench packs its hidden tests as base64 of zlib of a pickle of a text of JSON. A pickle is a
program, so it is not unpickled: its instructions are read, and only those that write down one text
are accepted.
"""

import base64
import binascii
import pickletools
import re
import zlib

import orjson

from ....types import JsonObject

MAX_UNPACKED = 1 << 30
"""Bytes of a row's hidden tests; the longest published ones take 0.2 GB."""

TEXTS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}

HARMLESS = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}
"""Instructions of a pickle that frame a text."""

WITH_STARTER = (
    "You will use the following starter code to write the solution to the problem"
    " and enclose your code within delimiters."
)
WITHOUT_STARTER = (
    "Read the inputs from stdin solve the problem and write the answer to stdout"
    " (do not directly test on the sample inputs). Enclose your code within delimiters"
    " as follows. Ensure that when the python program runs, it reads the inputs,"
    " runs the algorithm and writes output to STDOUT."
)
"""What NeMo Gym asks for with and without starter code."""

DEFINITION = re.compile(r"^def +(\w+) *\(", re.MULTILINE)


def read_livecodebench(row: JsonObject) -> JsonObject:
    """With `tests`, and `starter` and `format` for the prompt."""
    cases = [
        *_read_cases(row.get("public_test_cases")),
        *_read_cases(row.get("private_test_cases")),
    ]
    about = row.get("metadata") or {}
    about = orjson.loads(about) if isinstance(about, str) else about
    tests = {
        "inputs": [case["input"] for case in cases],
        "outputs": [case["output"] for case in cases],
    }
    packed = base64.b64encode(zlib.compress(orjson.dumps(tests), 6)).decode()
    starter = row.get("starter_code")
    return {
        **row,
        "tests": {"packed": packed, "fn_name": about.get("func_name") or None},
        "starter": f"```python\n{starter or '# YOUR CODE HERE'}\n```",
        "format": WITH_STARTER if starter else WITHOUT_STARTER,
    }


def _read_cases(given: str | None) -> list[JsonObject]:
    """Tests that are JSON, or packed; ValueError for anything else."""
    if not given:
        return []
    if given.lstrip()[:1] == "[":
        return orjson.loads(given)
    return orjson.loads(read_packed_text(given))


def read_packed_text(packed: str) -> str:
    """The text in base64 of zlib of a pickle; ValueError if it holds anything but one text."""
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(base64.b64decode(packed, validate=True), MAX_UNPACKED)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"its hidden tests are not packed as they should be: {error}") from None
    if unpacker.unconsumed_tail:
        raise ValueError(f"its hidden tests take more than {MAX_UNPACKED:,} bytes")
    return read_pickled_text(raw)


def read_pickled_text(raw: bytes) -> str:
    """The text of a pickle that is one; ValueError for any other."""
    try:
        found = [(instruction.name, text) for instruction, text, _ in pickletools.genops(raw)]
    except (IndexError, ValueError) as error:
        raise ValueError(f"its hidden tests are no pickle: {error}") from None
    texts = [str(text) for name, text in found if name in TEXTS]
    refused = [name for name, _ in found if name not in TEXTS | HARMLESS]
    if refused or len(texts) > 1:
        raise ValueError(f"a pickle with {(refused or ['a second text'])[0]} was refused")
    if not texts:
        raise ValueError("its hidden tests are a pickle without a text")
    return texts[0]


def read_mbpp(row: JsonObject) -> JsonObject:
    """With `function`, which the tests call, their `program`, and `tests` for the prompt."""
    listed = list(row["test_list"])
    program = "\n".join([*(row.get("test_imports") or ()), *listed, row.get("test") or ""])
    named = [each for each in DEFINITION.findall(row["code"]) if f"{each}(" in "\n".join(listed)]
    if not named:
        raise ValueError("none of the functions in 'code' is called in 'test_list'")
    return {**row, "function": named[-1], "program": program, "tests": "\n".join(listed)}
