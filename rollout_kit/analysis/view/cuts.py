"""What a page shows of long texts: the beginning, and the end, where errors stand."""

from typing import Any

from ...types import JsonObject

MAX_TEXT = 100_000
"""Characters of a text that a page shows at first; it can ask for the rest."""

HEAD = 60_000
"""Those of them from the beginning."""

MAX_LEVELS = 100
"""Levels of nested values that a page shows."""

TAIL = MAX_TEXT - HEAD

Path = tuple[str | int, ...]


class CutText(str):
    """A text without its middle; `length` is the number of characters of the whole."""

    length: int

    @classmethod
    def of(cls, first: str, last: str, length: int) -> "CutText":
        """`first` has at least HEAD characters of a text of more than MAX_TEXT, `last` TAIL."""
        middle = f"\n… {length - MAX_TEXT:,} more characters …\n"
        found = cls(f"{first[:HEAD]}{middle}{last[-TAIL:]}")
        found.length = length
        return found


def is_image_result(kind: object, name: str) -> bool:
    """Whether a field of an item is an image, without a prefix that says so."""
    return kind == "image_generation_call" and name == "result"


class Cuts:
    """Cuts the texts of a value, and notes in `found` where: the path, the characters of the whole
    text, and of the beginning and the end that are left."""

    def __init__(self) -> None:
        self.found: list[JsonObject] = []

    def cut(self, value: Any, path: Path = (), level: int = 0) -> Any:
        """The value without the middle of long texts and without deep levels; an image, as a data
        URL or as the result of a generation, stays whole."""
        if isinstance(value, str):
            if len(value) <= MAX_TEXT or value.startswith("data:image/"):
                return value
            cut = value if isinstance(value, CutText) else CutText.of(value, value, len(value))
            self.found.append({"path": path, "length": cut.length, "head": HEAD, "tail": TAIL})
            return cut
        if isinstance(value, list | dict) and level >= MAX_LEVELS:
            return "… deeper levels: see the download"
        if isinstance(value, list):
            return [self.cut(each, (*path, at), level + 1) for at, each in enumerate(value)]
        if isinstance(value, dict):
            kind = value.get("type")
            return {
                name: each
                if is_image_result(kind, name)
                else self.cut(each, (*path, name), level + 1)
                for name, each in value.items()
            }
        return value
