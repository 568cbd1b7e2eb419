"""Symbolic equality by math-verify, in a worker process of `app.py`.

Only this file imports sympy. math-verify's own time limits are off: they are signals, which do not
interrupt long computations in sympy. The caller kills this process at its deadline instead.
"""

import logging
import re

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

logging.disable(logging.CRITICAL)

TARGETS = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())

TYPED = str.maketrans(
    {
        "−": "-",
        "×": "\\times ",
        "·": "\\cdot ",
        "÷": "/",
        "π": "\\pi ",
        "°": "^\\circ",
        "∞": "\\infty ",
        "≤": "\\le ",
        "≥": "\\ge ",
        "∪": "\\cup ",
    }
)
ROOT = re.compile(r"(?:(?<![\\A-Za-z])sqrt|√)\s*(?:\(([^()]*)\)|(\d+))")
WORD = re.compile(r"(?<![\\A-Za-z])(pi|infinity|inf)(?![A-Za-z])")
NAMES = {"pi": "\\pi ", "infinity": "\\infty ", "inf": "\\infty "}


def are_equal(expected: str, answer: str) -> bool:
    """Whether two answers are equal; False if they cannot be parsed or compared."""
    try:
        return bool(verify(_parse(expected), _parse(answer), timeout_seconds=None))
    except Exception:  # sympy raises exceptions of any type on unusual input
        return False


def _parse(answer: str) -> list:
    return parse("\\boxed{" + _to_latex(answer) + "}", TARGETS, parsing_timeout=None)


def _to_latex(answer: str) -> str:
    answer = answer.translate(TYPED)
    answer = ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2]}}}", answer)
    return WORD.sub(lambda found: NAMES[found[1]], answer)


# the parser builds tables at first use; do it before the first deadline starts
for _expected, _answer in [
    (r"\frac{1}{2}", "0.25 + 1/4"),
    (r"\sqrt{2}/2", r"\frac{1}{\sqrt{2}}"),
    (r"[0,\infty)", "x \\ge 0"),
    (r"y=2x+1", "2x+1=y"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"),
]:
    are_equal(_expected, _answer)
