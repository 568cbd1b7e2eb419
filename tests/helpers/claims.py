"""What pages show as printed or written, compared with what commands print and write.

Figures may differ, and hexadecimal ids. An ellipsis in a page stands for what it leaves out: a line
of it for whole lines.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from support import BLOCK, Block, blocks
from workplace import ROOT

FIGURE = r"[-+]?\$?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?(?: ?(?:[kM]|[kMG]B|ms|s|h|min|%|it/s))?(?!\w)"

MASKS = {
    r"\s*^…$\s*": r"\s(?s:.*?)^\s*",
    "…": r"[^\n]*?",
    r"\|[█▏▎▍▌▋▊▉ ]*\|": r"\|[█▏▎▍▌▋▊▉ ]*\|",
    r"(?<!\w)(?=[a-f]*\d)[0-9a-f]{8,}(?!\w)": r"[0-9a-f]+",
    rf"(?<!\w){FIGURE}": FIGURE,
    r"\s+": r"\s+",
}
"""What in a page stands for more than itself, and for what."""

SCAN = re.compile("|".join(f"({mask})" for mask in MASKS), re.MULTILINE)


def is_output(block: Block) -> bool:
    """Whether a block shows what a command prints or writes."""
    return not block.file and block.language in ("", "json")


def answers(document: str) -> Iterator[tuple[Block, Block]]:
    """Commands of a page and the output that it shows directly below each."""
    found = [*BLOCK.finditer(document)]
    for first, second in itertools.pairwise(found):
        command, output = Block(**first.groupdict()), Block(**second.groupdict())
        is_shown = command.language == "bash" and not output.language
        if is_shown and not document[first.end() : second.start()].strip():
            yield command, output


def shown(page: str, begins: str) -> str:
    """The one block of a page that begins so."""
    found = [each.text for each in blocks((ROOT / page).read_text())]
    [text] = [text for text in found if text.lstrip().startswith(begins)]
    return text


def pattern_of(text: str) -> str:
    """A regular expression for what a page shows."""
    text, made, end = text.strip(), "", 0
    for match in SCAN.finditer(text):
        assert match.lastindex
        made += re.escape(text[end : match.start()]) + [*MASKS.values()][match.lastindex - 1]
        end = match.end()
    return made + re.escape(text[end:])


def is_printed(text: str, printed: str) -> bool:
    return bool(re.search(rf"^\s*{pattern_of(text)}\s*$", printed, re.MULTILINE))


def assert_prints(page: str, begins: str, printed: str) -> None:
    """That a command has printed what a page shows, its figures aside."""
    text = shown(page, begins)
    assert is_printed(text, printed), f"{page} shows:\n{text}\nbut this is printed:\n{printed}"


def assert_written(page: str, begins: str, value: Any) -> None:
    """That JSON has the fields that a page shows, with values of the same types."""
    text = shown(page, begins).replace("[…]", '"…"').replace("{…}", '"…"').replace(", …", "")
    missing = list(find_missing(json.loads(text), value, ""))
    assert not missing, f"{page}: {missing} are not in {json.dumps(value)}"


def find_missing(claim: Any, value: Any, place: str) -> list[str]:
    """Where a value lacks what is claimed of it."""
    if claim == "…":
        return []
    if isinstance(claim, dict) and isinstance(value, dict):
        return [
            each
            for name, inner in claim.items()
            for each in (
                find_missing(inner, value[name], f"{place}.{name}")
                if name in value
                else [f"{place}.{name}"]
            )
        ]
    if isinstance(claim, list) and isinstance(value, list):
        return find_missing(claim[0], value[0], f"{place}[0]") if claim and value else []
    kinds = [float if type(each) is int else type(each) for each in (claim, value)]
    return [] if kinds[0] is kinds[1] else [f"{place}: {claim!r}"]
