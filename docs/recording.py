"""Records a terminal in which the demo is killed and continued, as an animated picture.

make pictures   # runs this, too
"""

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

import pyte

ROOT = Path(__file__).resolve().parents[1]

COLUMNS, ROWS = 104, 18

FRAMES_A_SECOND = 6

LAST_S = 5.0
"""How long the end is shown before the picture begins again."""

TYPED_A_SECOND = 40

COLUMN, ROW, MARGIN = 7.25, 17, 14

COMMAND = """ng_collect_rollouts "+config_paths=[configs/demo.yaml]" \\
  +input_jsonl_fpath=responses_api_models/local_model/data/demo.jsonl \\
  +output_jsonl_fpath=rollouts.jsonl +num_repeats=4"""

KILL_AT = 150
"""Rollouts on disk after which the first run is killed."""

STYLE = """text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
 fill: #24292f; white-space: pre }
rect { fill: #f6f8fa; stroke: #9aa4b2 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 }
 rect { fill: #0d1117; stroke: #6b7686 } }
@media (prefers-reduced-motion: reduce) { text { animation: none !important; visibility: hidden }
 .last { visibility: visible } }"""


@dataclass(frozen=True)
class Frame:
    """What the terminal shows from this second on."""

    at_s: float
    lines: tuple[str, ...]


class Terminal:
    """A terminal of which frames are kept."""

    def __init__(self) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._began = time.monotonic()
        self._waited_s = 0.0
        self.frames: list[Frame] = []

    def type(self, text: str) -> None:
        """Show what a reader types, at the pace of a quick typist."""
        for number, part in enumerate(text):
            self.show(part.replace("\n", "\r\n").encode())
            self._waited_s += 1 / TYPED_A_SECOND
            if number % 8 == 7:
                self._keep()
        self._keep()

    def show(self, data: bytes) -> None:
        self._stream.feed(data)

    def run(self, command: str, folder: Path, kill_at: int | None = None) -> None:
        """Run a command; kill it once `kill_at` rollouts are on disk."""
        self.type(f"$ {command}\n")
        master, slave = pty.openpty()
        os.set_blocking(master, False)
        size = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        process = subprocess.Popen(
            ["bash", "-c", f"stty cols {COLUMNS} rows {ROWS}; {command}"],
            cwd=folder,
            env={
                **os.environ,
                **size,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        while self._read(master) or process.poll() is None:
            if kill_at is not None and _count(folder / "rollouts.jsonl") >= kill_at:
                os.killpg(process.pid, signal.SIGKILL)
                kill_at = None
        os.close(master)
        if process.wait() < 0:
            self.show(b"\r\nKilled\r\n")
        self._keep()

    def _read(self, master: int) -> bool:
        ready, _, _ = select.select([master], [], [], 1 / FRAMES_A_SECOND)
        try:
            data = os.read(master, 1 << 16) if ready else b""
        except OSError:  # the command has ended
            data = b""
        self.show(data)
        now = time.monotonic() - self._began + self._waited_s
        if not self.frames or now - self.frames[-1].at_s >= 1 / FRAMES_A_SECOND:
            self._keep()
        return bool(data)

    def _keep(self) -> None:
        lines = tuple(line.rstrip() for line in self._screen.display)
        if not self.frames or lines != self.frames[-1].lines:
            self.frames.append(Frame(time.monotonic() - self._began + self._waited_s, lines))


def _count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def draw(frames: Sequence[Frame], label: str) -> str:
    """The frames as an SVG that plays without end. With less motion, it shows the last frame."""
    end_s = frames[-1].at_s + LAST_S
    style, texts = [STYLE], []
    for number, (row, text, begin, end) in enumerate(_find_lines(frames, end_s)):
        is_last = end >= end_s
        first, last = 100 * begin / end_s, 100 * end / end_s
        keys = f"0% {{ visibility: hidden }} {first:.3f}% {{ visibility: visible }}"
        keys += "" if is_last else f" {last:.3f}% {{ visibility: hidden }}"
        style.append(f"@keyframes k{number} {{ {keys} }}")
        place = f'x="{MARGIN}" y="{MARGIN + 12 + ROW * row}"'
        moves = f'style="animation: k{number} {end_s:.2f}s step-end infinite"'
        kind = ' class="last"' if is_last else ""
        texts.append(f"<text{kind} {place} {moves}>{escape(text)}</text>")
    width, height = 2 * MARGIN + COLUMN * COLUMNS, 2 * MARGIN + ROW * ROWS
    box = f'viewBox="0 0 {width:.0f} {height}" role="img" aria-label="{escape(label)}"'
    ground = f'<rect x="1" y="1" width="{width - 2:.0f}" height="{height - 2}" rx="6"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return "\n".join([head, "<style>", *style, "</style>", ground, *texts, "</svg>", ""])


def _find_lines(frames: Sequence[Frame], end_s: float) -> Iterator[tuple[int, str, float, float]]:
    """(row, text, begin, end) of each text, as long as it stands in its row."""
    ends = [*(frame.at_s for frame in frames[1:]), end_s]
    for row in range(ROWS):
        spans = zip(frames, ends, strict=True)
        for text, same in groupby(spans, lambda each: each[0].lines[row]):  # noqa: B023
            found = list(same)
            if text:
                yield row, text, found[0][0].at_s, found[-1][1]


def record(folder: Path, target: Path) -> None:
    """Record the demo in a folder; it has to be empty."""
    terminal = Terminal()
    terminal.run(COMMAND, folder, kill_at=KILL_AT)
    terminal.type("$ # killed. The same command again:\n")
    terminal.run(COMMAND, folder)
    terminal.run(shlex.join(["wc", "-l", "rollouts.jsonl"]), folder)
    what = "The demo is killed, and the same command continues it: 384 rollouts, each once"
    target.write_text(draw(terminal.frames, what))


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        record(Path(place), ROOT / "docs/images/demo.svg")
