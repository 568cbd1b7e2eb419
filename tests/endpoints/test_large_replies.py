"""The memory that one large reply takes, as the growth of a process's peak."""

import json
import zlib
from pathlib import Path

import orjson
import pytest
from large_reply import CASES, measure, measure_run

from rollout_kit.responses import quote_json
from rollout_kit.serving.transport.connection import AT_ONCE, MANY, Body, TooLarge
from rollout_kit.serving.transport.wire import LARGE, parse_json

SIZE = 40_000_000

ROOM = 24_000_000
"""Bytes besides copies of the reply: buffers, imports, and the parts that are looked through."""


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"bomb"}))
def test_a_reply_takes_at_most_three_times_its_size(case: str) -> None:
    growth, said = measure(case, SIZE)
    assert said == SIZE // 65_536 * 65_536 if case in ("chat", "responses", "packed") else said
    assert growth < 2.5 * SIZE + ROOM, f"{growth / SIZE:.2f} times its size"


def test_a_compressed_reply_is_refused_before_more_of_it_is_decompressed() -> None:
    growth, said = measure("bomb", 10 * SIZE, limit_mb=SIZE / 1e6)
    assert "answered with more than max_reply_mb=40" in str(said)
    assert growth < 1.5 * SIZE + ROOM, f"{growth / SIZE:.2f} times what is permitted"


@pytest.mark.parametrize("case", ["chat", "error"])
def test_a_whole_rollout_takes_little_more(case: str, tmp_path: Path) -> None:
    growth = measure_run(case, SIZE, tmp_path)
    assert growth < 3.2 * SIZE + ROOM, f"{growth / SIZE:.2f} times its size"
    suffix = "" if case == "chat" else ".d/failures"
    assert (tmp_path / f"out/rollouts{suffix}.jsonl").read_bytes().count(b"\n") == 1


@pytest.mark.parametrize("size", [0, 1, 5 * AT_ONCE + 3])
@pytest.mark.parametrize("step", [1 << 10, 1 << 16, 1 << 30])
@pytest.mark.parametrize("wbits", [15, 31])
def test_a_body_is_the_same_in_any_pieces(size: int, step: int, wbits: int) -> None:
    plain = bytes(number % 251 for number in range(997)) * (size // 997 + 1)
    plain = plain[:size]
    packing = zlib.compressobj(wbits=wbits)
    packed = packing.compress(plain) + packing.flush()
    for raw, is_packed in ((plain, False), (packed, True)):
        body = Body(size)
        if is_packed:
            body.unpack()
        for start in range(0, len(raw), step):
            body.add(raw[start : start + step])
        assert body.take() == plain
        assert body.take() == b"" or is_packed


def test_many_pieces_are_one_body() -> None:
    body = Body(1 << 20)
    for number in range(5 * MANY + 3):
        body.add(b"%03d" % number)
    assert body.take() == b"".join(b"%03d" % number for number in range(5 * MANY + 3))


def test_a_body_that_decompresses_to_more_is_refused_at_once() -> None:
    body = Body(3 * AT_ONCE)
    body.unpack()
    with pytest.raises(TooLarge):
        body.add(zlib.compress(bytes(1 << 30), 1)[: 1 << 19])


@pytest.mark.parametrize(
    "odd", [b"1", b"18446744073709551616", b"-1e5", b'"\\ud83d\\ude00"', b"[[]]"]
)
def test_large_json_is_read_as_small_json_is(odd: bytes) -> None:
    raw = b'{"x": [' + odd + b'], "y": "' + b"y" * LARGE + b'"}'
    assert parse_json(raw) == orjson.loads(raw)
    assert type(parse_json(raw)["x"][0]) is type(orjson.loads(raw)["x"][0])


@pytest.mark.parametrize("odd", [b"NaN", b'"\\ud83d"', b"1]", b"\xff"])
def test_large_text_that_is_no_json_is_refused_in_the_same_words(odd: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        parse_json(b'["' + b"y" * LARGE + b'", ' + odd + b"]")


def test_an_error_quotes_the_start_of_a_long_value() -> None:
    quoted = quote_json({"a": ["x" * 1_000_000] * 3, "b": list(range(1_000_000)), "c": None})
    assert len(quoted) < 200_000 and json.loads(quoted)["c"] is None
