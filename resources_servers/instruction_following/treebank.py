"""Sentences and words by nltk, as in IFEval.

Punkt splits sentences with the short lists below, because its trained tables need a download.
"""

from nltk.tokenize.destructive import NLTKWordTokenizer
from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

ABBREVIATIONS = """
a.m p.m u.s u.k u.n e.u d.c e.g i.e etc vs cf al approx dept est fig figs inc ltd co corp bros
jr sr mr mrs ms dr prof rev hon gen col maj capt lt sgt cmdr adm gov sen rep pres st ave blvd rd mt
ft no nos vol pp ed eds jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri ph.d
m.d b.a m.a b.s m.s l.a n.y
"""

STARTERS = """
the a an it he she they we i you this that these those there but and so in on at for as if when
while although because however since after by still yet then
"""


def _make_punkt() -> PunktSentenceTokenizer:
    known = PunktParameters()
    known.abbrev_types = set(ABBREVIATIONS.split())
    known.sent_starters = set(STARTERS.split())
    return PunktSentenceTokenizer(known)


PUNKT = _make_punkt()
TREEBANK = NLTKWordTokenizer()


def count_sentences(text: str) -> int:
    return sum(1 for _ in PUNKT.span_tokenize(text))


def tokenize(text: str) -> list[str]:
    """Split into words and punctuation like the Penn Treebank."""
    return [word for part in PUNKT.tokenize(text) for word in TREEBANK.tokenize(part)]
