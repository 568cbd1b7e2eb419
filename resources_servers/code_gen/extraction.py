"""Extract the program of a response, and find misplaced reasoning."""

import re
from dataclasses import dataclass
from typing import Any

from rollout_kit import content_texts, output_items, output_text

FENCE = "```"

MARK = "\ufeff"
"""Byte order mark."""

PYTHON = re.compile(r"\{?\.?(?:python|pypy|py)[\d.]*(?![\w+#-])", re.IGNORECASE)
"""The language of a fence, for example `python`, `Python3` or `{.py}`."""

OUTPUTS = re.compile(r"\b(?:print|write|writelines)(?:[(,)]|\s*$)|^\s*(?:async )?def |\blambda\b")
"""A program has such a line: without it, it can neither print nor define a function."""

THINK = ("<think>", "</think>")


@dataclass(slots=True)
class Block:
    """The lines between two fences, and the text after the opening fence."""

    language: str
    lines: list[str]
    is_closed: bool = False

    @property
    def code(self) -> str:
        """Without a byte order mark and the indentation of the first line."""
        code = "\n".join(self.lines)
        is_marked = code.lstrip().startswith(MARK)
        lines = code.replace(MARK, "", is_marked).split("\n")
        first = next(filter(str.strip, lines), "")
        margin = first[: len(first) - len(first.lstrip())]
        return "\n".join(line.removeprefix(margin) for line in lines)

    def is_program(self) -> bool:
        if self.language:
            return PYTHON.match(self.language) is not None
        return any(OUTPUTS.search(line) for line in self.lines)


def extract_code(text: str, function: str | None = None) -> str:
    """Return the last block of Python, preferably one that defines the `function`.

    It is empty if that block has no end. Without such blocks it is the text between the last two
    lines with a fence, as in LiveCodeBench.
    """
    if FENCE not in text:
        return ""
    lines = text.split("\n")
    programs = [block for block in _read_blocks(lines) if block.is_program()]
    if function:
        definition = f"def {function}("
        programs = [
            block for block in programs if any(definition in line for line in block.lines)
        ] or programs
    if programs:
        return programs[-1].code if programs[-1].is_closed else ""
    fences = [number for number, line in enumerate(lines) if FENCE in line]
    return Block("", lines[fences[-2] + 1 : fences[-1]]).code if len(fences) > 1 else ""


def _read_blocks(lines: list[str]) -> list[Block]:
    blocks: list[Block] = []
    is_open = False
    for line in lines:
        before, fence, after = line.partition(FENCE)
        after = after.lstrip("`").strip()
        is_opening = bool(fence) and FENCE not in after and not (before.strip() and " " in after)
        if is_opening and (not is_open or (not before.strip() and PYTHON.match(after))):
            blocks.append(Block(after, []))
            is_open = True
        elif is_open and fence and (not before.strip() or not after):
            blocks[-1].is_closed, is_open = True, False
            if before.strip():
                blocks[-1].lines.append(before)
        elif is_open:
            blocks[-1].lines.append(line)
    return blocks


def is_reasoning_misplaced(response: dict[str, Any]) -> bool:
    """Whether a think tag is in the answer, or twice in the reasoning."""
    text = output_text(response)
    reasoning = "".join(
        part
        for item in output_items(response)
        if item.get("type") == "reasoning"
        for part in content_texts(item.get("summary"))
    )
    return any(tag in text or reasoning.count(tag) > 1 for tag in THINK)
