"""Our verdicts on the pairs of gold and answer in Math-Verify's own tests.

python -m benchmarks.agreement.math_verify [folder of its tests]

Without a folder the tests are downloaded. They are read and not run. Math-Verify takes the last
formula of any text, while `math_with_verify` looks for a box or "answer is". An answer with neither
is put into a box: its last formula, or all of it.
"""

import ast
import asyncio
import io
import re
import sys
import tarfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from .ours import require, shorten, verify

COMMIT = "5d148cfaaf99214c2e4ffb4bc497ab042c592a7a"
URL = f"https://github.com/huggingface/Math-Verify/archive/{COMMIT}.tar.gz"

FORMULA = re.compile(r"\$\$(.+?)\$\$|\$((?:[^$\\]|\\.)+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)

SHOWN = 40, 79
"""Characters of the start and the end of a text."""


class Pair(NamedTuple):
    test: str
    gold: str
    answer: str
    wanted: bool


class Verdict(NamedTuple):
    extracted: str | None
    is_right: bool


def main() -> int:
    with TemporaryDirectory() as folder:
        given = Path(sys.argv[1]) if len(sys.argv) > 1 else download(Path(folder))
        pairs = [pair for path in sorted(given.rglob("test_*.py")) for pair in read_pairs(path)]
    if not pairs:
        print(f"no pairs of gold and answer in {given}")
        return 1
    verdicts = asyncio.run(judge(pairs))
    show(pairs, verdicts)
    return 0


def download(folder: Path) -> Path:
    with (
        urllib.request.urlopen(URL) as reply,
        tarfile.open(fileobj=io.BytesIO(reply.read())) as tar,
    ):
        tar.extractall(folder, filter="data")
    return folder


def read_pairs(path: Path) -> Iterator[Pair]:
    """The parameters `gold`, `pred` and the verdict, of each test that has them as literals."""
    for test in ast.parse(path.read_text()).body:
        if not isinstance(test, ast.FunctionDef):
            continue
        for decorator in test.decorator_list:
            match decorator:
                case ast.Call(args=[ast.Constant(str(names)), ast.List(rows)]):
                    fields = [name.strip() for name in names.split(",")]
                    if fields[:2] == ["gold", "pred"]:
                        yield from _read_rows(test.name, fields, rows)


def _read_rows(test: str, fields: list[str], rows: list[ast.expr]) -> Iterator[Pair]:
    for row in rows:
        try:
            values = dict(zip(fields, ast.literal_eval(row), strict=True))
        except ValueError:
            continue  # computed by the test
        wanted = values.get("expected", values.get("result"))
        yield Pair(test, values["gold"], values["pred"], bool(wanted))


async def judge(pairs: list[Pair]) -> list[Verdict]:
    """Our verdicts; where no answer is found, those on the answer in a box."""
    verdicts = await _ask([(each.gold, each.answer) for each in pairs])
    unread = [at for at, verdict in enumerate(verdicts) if verdict.extracted is None]
    boxes = [f"\\boxed{{{find_formula(pairs[at].answer)}}}" for at in unread]
    again = await _ask([(pairs[at].gold, box) for at, box in zip(unread, boxes, strict=True)])
    for at, verdict in zip(unread, again, strict=True):
        verdicts[at] = verdict
    return verdicts


async def _ask(asked: list[tuple[str, str]]) -> list[Verdict]:
    rows = [({"expected_answer": gold}, answer) for gold, answer in asked]
    found = map(require, await verify("math_with_verify", rows, verify_timeout_s=30))
    return [Verdict(each["extracted_answer"], each["reward"] == 1.0) for each in found]


def find_formula(text: str) -> str:
    formulas = [next(filter(None, found)) for found in FORMULA.findall(text)]
    return formulas[-1] if formulas else text


def show(pairs: list[Pair], verdicts: list[Verdict]) -> None:
    judged = list(zip(pairs, verdicts, strict=True))
    total, agreed = Counter(pair.test for pair in pairs), Counter[str]()
    for pair, verdict in judged:
        agreed[pair.test] += pair.wanted == verdict.is_right
    for test, number in total.items():
        print(f"{test:44}{agreed[test]:>5} of {number}")
    print(f"{'all':44}{agreed.total():>5} of {total.total()}\n")
    for pair, verdict in judged:
        if pair.wanted != verdict.is_right:
            print(f"{'refused' if pair.wanted else 'rewarded'}  {pair.test}")
            print(f"    gold    {shorten(pair.gold, *SHOWN)}")
            print(f"    answer  {shorten(pair.answer, *SHOWN)}")
            print(f"    found   {shorten(verdict.extracted or '', *SHOWN)}")


if __name__ == "__main__":
    sys.exit(main())
