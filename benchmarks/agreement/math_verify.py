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
from typing import Any, NamedTuple

from rollout_kit.responses import make_response, message_item
from rollout_kit.serving import registry
from rollout_kit.testing import making, mount

COMMIT = "5d148cfaaf99214c2e4ffb4bc497ab042c592a7a"
URL = f"https://github.com/huggingface/Math-Verify/archive/{COMMIT}.tar.gz"

FORMULA = re.compile(r"\$\$(.+?)\$\$|\$((?:[^$\\]|\\.)+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)

SERVER = "math_with_verify"


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
    verdicts = asyncio.run(verify(pairs))
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


async def verify(pairs: list[Pair]) -> list[Verdict]:
    server = registry.load("resources_servers", SERVER)
    places = asyncio.Semaphore(16)
    async with mount({SERVER: making(server, verify_timeout_s=30)}) as peers:

        async def ask(gold: str, text: str) -> dict[str, Any]:
            row = {"responses_create_params": {"input": "?"}, "expected_answer": gold}
            response = make_response("m", [message_item(text)] if text else [], None)
            return await peers.call(SERVER, "/verify", {**row, "response": response}, dict)

        async def one(pair: Pair) -> Verdict:
            async with places:
                found = await ask(pair.gold, pair.answer)
                if found["extracted_answer"] is None:
                    found = await ask(pair.gold, f"\\boxed{{{find_formula(pair.answer)}}}")
            return Verdict(found["extracted_answer"], found["reward"] == 1.0)

        return await asyncio.gather(*map(one, pairs))


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
            print(f"    gold    {shorten(pair.gold)}")
            print(f"    answer  {shorten(pair.answer)}")
            print(f"    found   {shorten(verdict.extracted or '')}")


def shorten(text: str) -> str:
    text = text.replace("\n", "⏎")
    return text if len(text) <= 120 else f"{text[:40]}…{text[-79:]}"


if __name__ == "__main__":
    sys.exit(main())
