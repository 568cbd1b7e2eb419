"""Answers that stand in the prompts of rows."""

import re
from collections.abc import Sequence

from .labels import GamedTask

LEAKS_ANSWER = "the prompt holds the answer"

GIVEN = r"(?:answer|solution|expected|label|gold|truth|target|result|reference|hint|key|correct)"

FEW = 3
"""A text of fewer letters stands in a prompt by chance."""


def find_leaks(tasks: Sequence[GamedTask]) -> list[str]:
    """The evidence, if the prompts of most rows hold the answer."""
    known = [task for task in tasks if task.label or len(task.gold) > FEW]
    leaking = [how for task in known if (how := _find_leak(task))]
    if not leaking or len(leaking) * 3 < len(known) * 2:
        return []
    return [f"in {len(leaking):,} of {len(known):,} rows, for example {leaking[0]}"]


def _find_leak(task: GamedTask) -> str:
    gold = task.gold.strip()
    if len(gold) > 20 and gold in task.prompt:
        return f"the gold answer '{gold[:60]}'"
    label = re.escape(task.label)
    if not task.label or _lists_others(task):
        return ""
    start, end = (r"(?<!\w)" if task.label[0].isalnum() else "", r"(?![\w])")
    near = rf"(?i)\b{GIVEN}\w*\W{{1,4}}(?:is\W{{1,3}}|=\W{{0,3}})?{start}{label}{end}"
    if found := re.search(near, task.prompt):
        return f"'{found[0][:60]}'"
    hidden = (
        rf"(?i)(?:<!--|\[|\(|/\*|#)\s*(?:\w+\W{{1,3}})?{start}{label}{end}\s*(?:-->|\]|\)|\*/|$)"
    )
    if len(task.label) >= FEW and (found := re.search(hidden, task.prompt, re.MULTILINE)):
        return f"'{found[0][:60]}'"
    return ""


def _lists_others(task: GamedTask) -> bool:
    """Whether the prompt offers the answers of other rows too, as options."""
    return (
        any(
            re.search(rf"(?i)(?<!\w){re.escape(other)}(?!\w)", task.prompt)
            for other in task.others
            if other.casefold() != task.label.casefold()
        )
        and len(task.others) <= 12
    )
