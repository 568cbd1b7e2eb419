"""Extract the code of a response, and find misplaced reasoning."""

from typing import Any

from rollout_kit import content_texts, output_items, output_text

FENCE = "```"

THINK = ("<think>", "</think>")


def extract_code(text: str) -> str:
    """Return the text between the last two lines with a fence, or an empty text."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if FENCE in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else ""


def is_reasoning_misplaced(response: dict[str, Any]) -> bool:
    """Whether a think tag is in the answer, or twice in the reasoning."""
    text = output_text(response)
    reasoning = "".join(
        part
        for item in output_items(response)
        if item.get("type") == "reasoning"
        for part in content_texts(item.get("summary"))
    )
    return any(tag in text or reasoning.count(tag) > 1 for tag in THINK)
