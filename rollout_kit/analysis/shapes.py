"""What a plot consists of, and how it is written: as SVG inside a page, as an SVG file, as a PDF.

Coordinates are points from the upper left corner. The class of a shape has its colour, which a page
takes from its style sheet and a file from `COLOURS`.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from ..errors import ConfigError

FONT_SIZE = 11.5

COLOURS = {
    "grid": "#d9dde4",
    "axis": "#1c2230",
    "range": "#2359b8",
    "dot": "#2359b8",
    "bar": "#2359b8",
    "line-0": "#2359b8",
    "line-1": "#c2571a",
    "line-2": "#17692f",
    "line-3": "#7a3fa8",
    "line-4": "#8a6d00",
    "line-5": "#0d7480",
}
"""Class → its colour in a file, for white paper."""

INK = "#1c2230"

WIDTHS = (
    "278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 "
    "556 556 556 556 556 278 278 584 584 584 556 1015 667 667 722 722 667 611 778 722 278 "
    "500 667 556 833 722 778 667 778 722 667 611 722 667 944 667 667 611 278 278 278 469 "
    "556 333 556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 "
    "278 556 500 722 500 500 500 334 260 334 584 "
)
"""Of Helvetica, from the space to ~, in thousandths of its size."""

HELVETICA = dict(zip(map(chr, range(32, 127)), map(int, WIDTHS.split()), strict=True))


class Segment(NamedTuple):
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    kind: str

    def svg(self) -> str:
        return (
            f'<line class="{self.kind}" x1="{self.x1:.1f}" x2="{self.x2:.1f}"'
            f' y1="{self.y1:.1f}" y2="{self.y2:.1f}"/>'
        )

    def pdf(self, height: float) -> str:
        width = 0.6 if self.kind in ("grid", "axis") else 1.6
        ends = f"{self.x1:.2f} {height - self.y1:.2f} m {self.x2:.2f} {height - self.y2:.2f} l"
        return f"{_colour(self.kind)} RG {width} w {ends} S"


class Curve(NamedTuple):
    """A line through points."""

    points: Sequence[tuple[float, float]]
    kind: str

    def svg(self) -> str:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)
        return f'<polyline class="line {self.kind}" points="{path}"/>'

    def pdf(self, height: float) -> str:
        steps = " l ".join(f"{x:.2f} {height - y:.2f}" for x, y in self.points)
        return f"{_colour(self.kind)} RG 1.6 w {steps.replace(' l ', ' m ', 1)} l S"


class Dot(NamedTuple):
    """A filled circle."""

    x: float
    y: float
    radius: float
    kind: str

    def svg(self) -> str:
        return (
            f'<circle class="{self.kind}" cx="{self.x:.1f}" cy="{self.y:.1f}" r="{self.radius:g}"/>'
        )

    def pdf(self, height: float) -> str:
        # a stroke without length and with round ends is a dot
        x, y = f"{self.x:.2f}", f"{height - self.y:.2f}"
        return f"{_colour(self.kind)} RG 1 J {2 * self.radius:g} w {x} {y} m {x} {y} l S 0 J"


class Box(NamedTuple):
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str = ""

    def svg(self) -> str:
        title = f"<title>{escape(self.title)}</title>" if self.title else ""
        return (
            f'<rect class="{self.kind}" x="{self.x:.1f}" y="{self.y:.1f}"'
            f' width="{self.width:.1f}" height="{self.height:.1f}">{title}</rect>'
        )

    def pdf(self, height: float) -> str:
        place = (
            f"{self.x:.2f} {height - self.y - self.height:.2f} {self.width:.2f} {self.height:.2f}"
        )
        return f"{_colour(self.kind)} rg {place} re f"


class Label(NamedTuple):
    """A text; `anchor` is what of it stands at x: start, middle or end. `turned` reads upwards."""

    x: float
    y: float
    text: str
    anchor: str
    title: str = ""
    turned: bool = False

    def svg(self) -> str:
        inner = escape(self.text)
        inner += f"<title>{escape(self.title)}</title>" if self.title else ""
        turn = f' transform="rotate(-90 {self.x:.1f} {self.y:.1f})"' if self.turned else ""
        return (
            f'<text x="{self.x:.1f}" y="{self.y:.1f}" text-anchor="{self.anchor}"{turn}>'
            f"{inner}</text>"
        )

    def pdf(self, height: float) -> str:
        width = sum(HELVETICA.get(each, 556) for each in self.text) * FONT_SIZE / 1000
        back = {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
        x, y = self.x, height - self.y
        turn = (
            f"0 1 -1 0 {x:.2f} {y - back:.2f}" if self.turned else f"1 0 0 1 {x - back:.2f} {y:.2f}"
        )
        text = self.text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
        return f"BT {_rgb(INK)} rg /F1 {FONT_SIZE} Tf {turn} Tm ({text}) Tj ET"


Shape = Segment | Curve | Dot | Box | Label


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes on a page of `width` and `height`; as text it is SVG inside a page."""

    width: float
    height: float
    what: str
    shapes: Sequence[Shape]

    def __str__(self) -> str:
        return f"<svg {self._head()}>{''.join(each.svg() for each in self.shapes)}</svg>"

    def _head(self) -> str:
        box = f'viewBox="0 0 {self.width:g} {self.height:g}"'
        return f'{box} role="img" aria-label="{escape(self.what)}"'

    def svg_file(self) -> str:
        """An SVG that needs no style sheet."""
        rules = [f".{kind}{{fill:{colour};stroke:{colour}}}" for kind, colour in COLOURS.items()]
        rules += [
            f"text{{font:{FONT_SIZE}px Helvetica,Arial,sans-serif;fill:{INK}}}",
            ".line{fill:none}.line,line{stroke-width:1.6}.grid,.axis{stroke-width:.6}",
        ]
        size = f'width="{self.width:g}" height="{self.height:g}"'
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {self._head()}>\n'
            f"<title>{escape(self.what)}</title>\n<style>{''.join(rules)}</style>\n"
            '<rect width="100%" height="100%" fill="#fff"/>\n'
            + "\n".join(each.svg() for each in self.shapes)
            + "\n</svg>\n"
        )

    def pdf_file(self) -> bytes:
        """A PDF of one page, in Helvetica; ConfigError for a text that this font cannot write."""
        for each in self.shapes:
            if isinstance(each, Label):
                _check_latin(each.text)
        drawn = "\n".join(each.pdf(self.height) for each in self.shapes)
        page = zlib.compress(drawn.encode("cp1252"))
        box = f"[0 0 {self.width:g} {self.height:g}]"
        font = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
        objects = [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            f"<< /Type /Page /Parent 2 0 R /MediaBox {box} /Contents 4 0 R"
            " /Resources << /Font << /F1 5 0 R >> >> >>".encode(),
            f"<< /Length {len(page)} /Filter /FlateDecode >>\nstream\n".encode()
            + page
            + b"\nendstream",
            font.encode(),
        ]
        return _join_objects(objects)


def _join_objects(objects: Sequence[bytes]) -> bytes:
    """A PDF of numbered objects, the first of which is the catalogue."""
    made, places = bytearray(b"%PDF-1.4\n"), []
    for number, each in enumerate(objects, 1):
        places.append(len(made))
        made += f"{number} 0 obj\n".encode() + each + b"\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    begin, number = len(made), len(objects) + 1
    made += f"xref\n0 {number}\n0000000000 65535 f \n{table}".encode()
    made += f"trailer\n<< /Size {number} /Root 1 0 R >>\nstartxref\n{begin}\n%%EOF\n".encode()
    return bytes(made)


def _check_latin(text: str) -> None:
    try:
        text.encode("cp1252")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"'{text}': the font of a PDF has no '{text[error.start]}': give the runs other names"
            " with +labels=[…]"
        ) from None


def _rgb(colour: str) -> str:
    return " ".join(f"{int(colour[at : at + 2], 16) / 255:.3f}" for at in (1, 3, 5))


def _colour(kind: str) -> str:
    return _rgb(COLOURS[kind])
