"""Which English words can be a verb.

`verbs.txt` has the infinitives of the commoner verbs, and after a line `irregular` the forms that
the rules below do not make.
"""

from pathlib import Path

FILE = Path(__file__).with_name("verbs.txt")

VOWELS = "aeiou"


def inflect(verb: str) -> set[str]:
    """An infinitive, with the forms that it has if it is a regular verb."""
    last = verb[-1]
    if last == "y" and verb[-2] not in VOWELS:
        return {verb, verb[:-1] + "ies", verb[:-1] + "ied", verb + "ing"}
    ends_in_e = last == "e"
    stem = verb[:-1] if ends_in_e and not verb.endswith(("ee", "oe", "ye")) else verb
    plural = verb + ("es" if verb.endswith(("s", "x", "z", "ch", "sh", "o")) else "s")
    found = {verb, plural, stem + "ing", verb + ("d" if ends_in_e else "ed")}
    return found if ends_in_e else found | {verb + last + "ed", verb + last + "ing"}


def _read_verbs() -> frozenset[str]:
    infinitives, _, irregular = FILE.read_text("utf-8").partition("\nirregular\n")
    return frozenset(irregular.split()).union(*map(inflect, infinitives.split()))


VERBS = _read_verbs()


def is_verb(word: str) -> bool:
    return word.lower() in VERBS
