"""Draws one line of an output with a note to each part, from the line of a real run.

make pictures   # runs this, too
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROW, NOTE, WIDTH = 21, 452, 720

STYLE = """text { font: 12.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
 fill: #24292f; white-space: pre }
.note { font: 12px system-ui, sans-serif; fill: #3f51b5 }
.way { stroke: #c5cae9; stroke-width: 1 }
.ground { fill: #ffffff; stroke: #9aa4b2 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .note { fill: #a5b0ff }
 .way { stroke: #3c4677 } .ground { fill: #0d1117; stroke: #6b7686 } }"""

NOTES = {
    "_ng_task_index": "which task",
    "_ng_rollout_index": "which of its rollouts",
    "agent_ref": "the agent that ran it",
    "reward": "the verdict",
    "extracted_answer": "what else the verifier returned",
    "responses_create_params": "what the model was asked",
    "expected_answer": "fields of your row",
    "response": "items of all turns",
    "usage": "tokens of all turns",
    "rollout": "how it was made",
    "attempt": "1: the first attempt succeeded",
    "duration_s": "agent and verifier, in seconds",
    "finish_reason": "why the last turn ended",
    "settings": "fingerprint of all that decides it",
    "turns": "tokens, times and costs of each turn",
}
"""Field → what is written next to it, in the order of the picture."""

INNER = {"rollout": ("attempt", "finish_reason", "duration_s", "settings", "turns")}


def list_parts(line: dict[str, Any]) -> list[tuple[str, str]]:
    """(text, note) of each row of the picture."""
    parts = [("{", "one line of the file is one rollout")]
    for name in NOTES:
        if name in line and name not in INNER:
            parts.append((f'  "{name}": {_shorten(line[name])},', NOTES[name]))
        elif name in INNER:
            parts.append((f'  "{name}": {{', NOTES[name]))
            parts += [
                (f'    "{inner}": {_shorten(line[name][inner])},', NOTES[inner])
                for inner in INNER[name]
            ]
            parts.append(("    …}", ""))
    return [*parts, ("}", "")]


def _shorten(value: Any) -> str:
    if isinstance(value, dict):
        (name, inner), *_ = (*value.items(), ("", ""))
        more = ", …" if len(value) > 1 else ""
        return f'{{"{name}": {_shorten(inner)}{more}}}'
    if isinstance(value, list):
        return f"[{_shorten(value[0])}{', …' if len(value) > 1 else ''}]" if value else "[]"
    if isinstance(value, str):
        return json.dumps(value if len(value) < 22 else value[:20] + "…", ensure_ascii=False)
    return json.dumps(round(value, 3) if isinstance(value, float) else value)


def draw(parts: Sequence[tuple[str, str]]) -> str:
    height = ROW * len(parts) + 26
    rows = []
    for number, (text, note) in enumerate(parts):
        y = 30 + ROW * number
        shown = text if len(text) <= 58 else text[:56] + "…"
        rows.append(f'<text x="14" y="{y}">{escape(shown)}</text>')
        if note:
            begin = 22 + 7.55 * len(shown)
            if begin < NOTE - 12:
                rows.append(f'<path class="way" d="M{begin:.0f} {y - 4}H{NOTE - 6}"/>')
            rows.append(f'<text class="note" x="{NOTE}" y="{y}">{escape(note)}</text>')
    box = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="A line of the output, annotated"'
    ground = f'<rect class="ground" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="6"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return "\n".join([head, f"<style>\n{STYLE}\n</style>", ground, *rows, "</svg>", ""])


def annotate(rollouts: Path, target: Path) -> None:
    """Draw the first line of a file."""
    with rollouts.open() as file:
        line = json.loads(next(line for line in file if '"reward":1' in line))
    target.write_text(draw(list_parts(line)))
