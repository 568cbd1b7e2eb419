"""Fixed texts that are looked for in many others, of which most have none."""

from collections.abc import Iterable

FREQUENT = frozenset(b" \netaoinsrhldcu")
"""Characters of which a text has many."""


class Marks:
    """The texts that are looked for. Without all characters but their rare ones, another text is
    a fraction as long: only for a mark that is left there, the text itself is looked through."""

    def __init__(self, marks: Iterable[str]) -> None:
        encoded = [(mark, mark.encode()) for mark in marks]
        kept = frozenset(b"".join(raw for _, raw in encoded)) - FREQUENT
        self._left_out = bytes(set(range(256)) - kept)
        self._marks = [(mark, raw.translate(None, self._left_out)) for mark, raw in encoded]

    def are_in(self, text: str) -> bool:
        """Whether a text has one of the marks."""
        rest = text.encode(errors="surrogatepass").translate(None, self._left_out)
        return any(raw[0] in rest and raw in rest and mark in text for mark, raw in self._marks)
