"""A table as markdown, as LaTeX with booktabs, and as CSV with full precision."""

import csv
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

LATEX = {
    **{each: f"\\{each}" for each in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "[": "{[}",
    "·": r"\textperiodcentered{}",
}


class Table(NamedTuple):
    """`rows` are for people; `numbers` are the head and the rows of the CSV. `about` says what the
    figures mean."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    about: str
    numbers: tuple[Sequence[str], Sequence[Sequence[Any]]]


def markdown_text(table: Table) -> str:
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    shown = ["| " + " | ".join(map(_escape_cell, line)) + " |" for line in lines]
    return "\n".join([*shown, "", table.about, ""])


def _escape_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def latex_text(table: Table, label: str) -> str:
    """A table environment; the document needs `\\usepackage{booktabs}`."""
    lines = [" & ".join(map(_escape_latex, row)) + r" \\" for row in (table.head, *table.rows)]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            f"  \\caption{{{_escape_latex(table.about)}}}",
            f"  \\label{{tab:{label}}}",
            f"  \\begin{{tabular}}{{{'l' * len(table.head)}}}",
            r"    \toprule",
            f"    {lines[0]}",
            r"    \midrule",
            *(f"    {line}" for line in lines[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _escape_latex(text: str) -> str:
    return "".join(LATEX.get(each, each) for each in text)


def csv_text(table: Table) -> str:
    written = io.StringIO()
    head, rows = table.numbers
    csv.writer(written, lineterminator="\n").writerows([head, *rows])
    return written.getvalue()
