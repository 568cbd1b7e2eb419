"""Rows of benchmarks with code, and hidden tests that are a hostile pickle."""

import base64
import json
import os
import pickle
import zlib
from pathlib import Path

import pytest

from rollout_kit.collecting.data.benchmarks import code_rows
from rollout_kit.collecting.data.benchmarks.row_readers import READERS

CASES = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]


def pack(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw)).decode()


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_hidden_tests_are_one_text(protocol: int):
    text = json.dumps([{**CASES[0], "output": "ö\n"}], ensure_ascii=False)
    assert code_rows.read_packed_text(pack(pickle.dumps(text, protocol))) == text


def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path):
    touched = tmp_path / "touched"
    row = {
        "public_test_cases": json.dumps(CASES),
        "private_test_cases": pack(pickle.dumps(Touch(touched))),
        "metadata": "{}",
        "starter_code": "",
    }
    with pytest.raises(ValueError, match=r"a pickle with \w+ was refused"):
        READERS["livecodebench"](row)
    assert not touched.exists()
    pickle.loads(zlib.decompress(base64.b64decode(row["private_test_cases"])))
    assert touched.exists()


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (pack(pickle.dumps(["a", "b"])), "with EMPTY_LIST was refused"),
        (pack(pickle.dumps(b"[]")), "with SHORT_BINBYTES was refused"),
        (pack(b"cos\nsystem\n."), "with GLOBAL was refused"),
        (pack(b"X\x01\x00\x00\x00aX\x01\x00\x00\x00b."), "with a second text was refused"),
        (pack(b"."), "a pickle without a text"),
        (pack(b"[]"), "no pickle: at position 0"),
        ("no base64!", "not packed as they should be"),
        (base64.b64encode(b"no zlib").decode(), "not packed as they should be"),
    ],
)
def test_what_is_no_text_is_refused(packed: str, message: str):
    with pytest.raises(ValueError, match=message):
        code_rows.read_packed_text(packed)


def test_hidden_tests_have_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(code_rows, "MAX_UNPACKED", 1_000)
    with pytest.raises(ValueError, match="take more than 1,000 bytes"):
        code_rows.read_packed_text(pack(pickle.dumps("a" * 10_000_000)))


def test_public_and_hidden_tests_stand_together():
    private = [{**CASES[0], "output": "3\n"}]
    row = {
        "public_test_cases": json.dumps(CASES),
        "private_test_cases": pack(pickle.dumps(json.dumps(private))),
        "metadata": json.dumps({"func_name": "add"}),
        "starter_code": "class Solution:",
    }
    found = READERS["livecodebench"](row)
    tests = json.loads(zlib.decompress(base64.b64decode(found["tests"]["packed"])))
    assert tests == {"inputs": ["1\n", "1\n"], "outputs": ["2\n", "3\n"]}
    assert found["tests"]["fn_name"] == "add"
    assert found["starter"] == "```python\nclass Solution:\n```"


def test_the_function_of_mbpp_is_the_one_that_the_tests_call():
    code = "def helper(a):\r\n    return a\r\ndef add (a, b):\r\n    return a + helper(b)\r\n"
    row = {
        "code": code,
        "test_list": ["assert set([add(1, 2)]) == {3}"],
        "test_imports": ["import math"],
    }
    found = READERS["mbpp"](row)
    assert found["function"] == "add"
    assert found["program"].startswith("import math\nassert set([add(1, 2)])")
    with pytest.raises(ValueError, match="none of the functions in 'code' is called"):
        READERS["mbpp"]({**row, "code": "add = sum"})
