"""Count words, bullets and sections like IFEval.

Patterns of IFEval with quadratic time are replaced by equivalent ones.
"""

import re
import string

PERIOD, STOP = "\ue000", "\ue001"
"""Placeholders for a period inside a sentence, and for the end of a sentence."""

TITLES = "Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt"
OPENERS = rf"({TITLES}|(?:He|She|It|They|Their|Our|We|But|However|That|This)\s|Wherever)"
LETTER = "([A-Za-z])"
RULES = [
    (r"(Mr|St|Mrs|Ms|Dr)[.]", rf"\1{PERIOD}"),
    (r"[.](com|net|org|io|gov|edu|me)", rf"{PERIOD}\1"),
    (r"([0-9])[.]([0-9])", rf"\1{PERIOD}\2"),
    (r"\.{2,}", lambda found: PERIOD * len(found[0]) + STOP),
    (r"Ph\.D\.", f"Ph{PERIOD}D{PERIOD}"),
    (rf"\s{LETTER}[.] ", rf" \1{PERIOD} "),
    (rf"([A-Z][.][A-Z][.](?:[A-Z][.])?) {OPENERS}", rf"\1{STOP} \2"),
    (rf"{LETTER}[.]{LETTER}[.]{LETTER}[.]", rf"\1{PERIOD}\2{PERIOD}\3{PERIOD}"),
    (rf"{LETTER}[.]{LETTER}[.]", rf"\1{PERIOD}\2{PERIOD}"),
    (rf" (Inc|Ltd|Jr|Sr|Co)[.] {OPENERS}", rf" \1{STOP} \2"),
    (r" (Inc|Ltd|Jr|Sr|Co)[.]", rf" \1{PERIOD}"),
    (rf" {LETTER}[.]", rf" \1{PERIOD}"),
    (r"\.”", "”."),
    (r'\."', '".'),
    (r'!"', '"!'),
    (r'\?"', '"?'),
    (r"([.?!])", rf"\1{STOP}"),
]
RULES = [(re.compile(pattern), becomes) for pattern, becomes in RULES]


QUOTES = re.compile(r"^'*\"*")
PUNCTUATION = re.compile(r"""[.,?!'"—]""")
"""Ends the first word of a paragraph in IFEval, except the dash."""
EDGES = re.compile(r"^[\W_]+|[\W_]+$")

MARKS = string.punctuation + " "
"""What IFBench takes off the ends of words."""
NO_MARKS = str.maketrans("", "", string.punctuation)


def split_sentences(text: str) -> list[str]:
    """Split by the simple rules of Open-Instruct."""
    text = f" {text}  ".replace("\n", " ")
    for pattern, becomes in RULES:
        text = pattern.sub(becomes, text)
    sentences = [part.strip() for part in text.replace(PERIOD, ".").split(STOP)]
    return sentences if sentences[-1] else sentences[:-1]


def split_paragraphs(text: str) -> list[str]:
    """Split at empty lines, and leave out paragraphs without text."""
    return re.split(r"\n\s*\n", text.strip())


def begins_with(text: str, words: str) -> bool:
    """Whether the first words of `text` are `words`, without case and punctuation around them."""
    wanted = words.lower().split()
    found = text.lower().split(maxsplit=len(wanted))[: len(wanted)]
    return len(found) == len(wanted) and all(map(_is_word, found, wanted))


def _is_word(found: str, wanted: str) -> bool:
    bare = QUOTES.sub("", found)
    return wanted in (found, PUNCTUATION.split(bare)[0], EDGES.sub("", found))


def count_words(text: str) -> int:
    return len(re.findall(r"\w+", text))


def remove_marks(text: str) -> str:
    return text.translate(NO_MARKS)


def count_placeholders(text: str) -> int:
    r"""Count matches of `\[.*?\]`."""
    found = 0
    for line in text.split("\n"):
        end = 0
        while (start := line.find("[", end)) >= 0 and (end := line.find("]", start) + 1):
            found += 1
    return found


def count_bullets(text: str) -> int:
    r"""Count matches of `^\s*\*[^\*].*$` and of `^\s*-.*$`."""

    def shorter(run: re.Match[str]) -> str:
        return run[0][0] + ("\n" if "\n" in run[0][1:] else "")

    text = re.sub(r"\s{2,}", shorter, text)  # does not change where matches begin and end
    return sum(
        len(re.findall(pattern, text, re.MULTILINE)) for pattern in (r"^\s*\*[^\*].*$", r"^\s*-.*$")
    )


def count_highlights(text: str) -> int:
    once = [part for part in re.findall(r"\*[^\n\*]*\*", text) if part.strip("*").strip()]
    twice = [part for part in re.findall(r"\*\*[^\n\*]*\*\*", text) if part[2:-2].strip()]
    return len(once) + len(twice)


def count_parts(text: str, divider: str) -> int | None:
    """Count non-empty parts between matches of `divider`; None if an inner part is empty."""
    parts = [bool(part.strip()) for part in re.split(divider, text)]
    return None if not all(parts[1:-1]) else sum(parts)


def has_title(text: str) -> bool:
    r"""Whether a match of `<<[^\n]+>>` contains more than brackets."""
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end - 2 and line[start : end + 2].lstrip("<").rstrip(">").strip():
            return True
    return False
