"""ng_check_overlap: planted rows of a benchmark are found, and no others."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from support import read_jsonl, write_jsonl

check_command = as_function("ng_check_overlap")

PROMPT = (
    "Solve the following problem step by step, and put the final answer into a box at the very end"
    " of your reply, without any unit and without any further words:\n\n"
)
"""Every row begins with these words, those to train on too."""


def sentence(rng: random.Random, size: int) -> str:
    words = [
        f"{rng.choice('bcdfgklmnprst')}{rng.choice('aeiou')}{rng.randrange(200)}"
        for _ in "x" * size
    ]
    return " ".join(words).capitalize() + "?"


def task(text: str) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": PROMPT + text}]}}


def spoil(rng: random.Random, text: str) -> str:
    """The same text as others may have copied it."""
    changed = rng.choice([text.upper(), text.replace(" ", "  \n"), text.replace(" ", ", "), text])
    return f"{sentence(rng, 30)} {changed} {sentence(rng, 10)}"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, set[int]]:
    """Tasks, 500 rows to train on in three formats, and the numbers of the 20 planted ones."""
    rng = random.Random(3)
    tests = [sentence(rng, rng.randrange(8, 60)) for _ in range(100)]
    texts = [sentence(rng, rng.randrange(8, 80)) for _ in range(500)]
    planted = set(rng.sample(range(500), 20))
    for at, test in zip(sorted(planted), rng.sample(tests, 20), strict=True):
        texts[at] = spoil(rng, test)
    rows: list[dict[str, Any]] = []
    for at, text in enumerate(texts):
        messages = [
            {"role": "user", "content": PROMPT + text},
            {"role": "assistant", "content": "4"},
        ]
        rows.append(
            [{"messages": messages}, {"prompt": PROMPT, "question": text}, task(text)][at % 3]
        )
    write_jsonl(tmp_path / "test.jsonl", [*map(task, tests)])
    write_jsonl(tmp_path / "train.jsonl", rows)
    return tmp_path / "test.jsonl", tmp_path / "train.jsonl", planted


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        check_command(list(words))
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


def test_twenty_of_five_hundred_are_found_and_none_invented(
    files: tuple[Path, Path, set[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    test, train, planted = files
    words = [str(train), f"+against={test}", "+num_examples=100", "+json=true"]
    code, out = run(capsys, *words, f"+clean_fpath={train.with_name('clean.jsonl')}")
    found = json.loads(out)
    it = found["benchmarks"][str(test)]
    assert (code, found["rows"], found["rows_with_overlap"]) == (0, 500, 20)
    assert (it["rows"], it["rows_found"], it["share"]["value"]) == (100, 20, 0.2)
    places = {int(each["found_in"].rpartition(":")[2]) - 1 for each in it["examples"]}
    assert places == planted
    assert min(each["held"] for each in it["examples"]) > 0.9
    clean = read_jsonl(train.with_name("clean.jsonl"))
    rows = read_jsonl(train)
    assert clean == [row for at, row in enumerate(rows) if at not in planted]
    assert (
        json.loads(run(capsys, str(train.with_name("clean.jsonl")), *words[1:])[1])[
            "rows_with_overlap"
        ]
        == 0
    )


def test_a_limit_ends_with_status_1(
    files: tuple[Path, Path, set[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    test, train, _ = files
    code, out = run(capsys, str(train), f"+against={test}", "+max_overlap=0.1")
    assert code == 1
    assert "500 rows to train on, 20 of them with text of a benchmark" in out
    assert f"{test}: 20 of 100 rows found, 20.0%" in out
    assert run(capsys, str(train), f"+against={test}", "+max_overlap=0.2")[0] == 0


def test_a_benchmark_by_its_name(
    files: tuple[Path, Path, set[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, train, _ = files
    code, out = run(capsys, str(train))
    assert code == 1 and not out
    code, out = run(capsys, str(train), "+benchmark=gsm9k")
    assert code == 1 and not out
    code, out = run(capsys, f"+against={train}")
    assert code == 1 and not out
