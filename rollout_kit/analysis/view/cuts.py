"""What a page shows of long texts: the beginning, and the end, where errors stand."""

from typing import Any

from ...types import JsonObject

MAX_TEXT = 100_000
"""Characters of a text that a page shows at first; it can ask for the rest."""

HEAD = 60_000
"""Those of them from the beginning."""

MAX_LEVELS = 100
"""Levels of nested values that a page shows."""

Path = tuple[str | int, ...]


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
            tail = MAX_TEXT - HEAD
            self.found.append(
                {"path": path, "length": len(value), "head": HEAD, "tail": tail},
            )
            middle = f"\n… {len(value) - MAX_TEXT:,} more characters …\n"
            return f"{value[:HEAD]}{middle}{value[-tail:]}"
        if isinstance(value, list | dict) and level >= MAX_LEVELS:
            return "… deeper levels: see the download"
        if isinstance(value, list):
            return [self.cut(each, (*path, at), level + 1) for at, each in enumerate(value)]
        if isinstance(value, dict):
            is_image = value.get("type") == "image_generation_call"
            return {
                name: each
                if is_image and name == "result"
                else self.cut(each, (*path, name), level + 1)
                for name, each in value.items()
            }
        return value
