"""What an imitated judge replies, here and there: it depends on the question alone.

It also runs in the environments of the others.
"""

import hashlib

REPLIES = {
    "simple_qa": ["A", "B", "C", "Grade: B", "I would say A.", "**C**", "(A)"],
    "hle": [
        *("They match. GRADE: C", "They do not.\nGRADE: I", "GRADE :C", "GRADE: I\nNo, GRADE: C"),
        "**GRADE: I**",
    ],
    "health_bench": [
        '{"explanation": "It does.", "criteria_met": true}',
        '```json\n{"explanation": "It does not.", "criteria_met": false}\n```',
        '```\n{"criteria_met": true}\n```',
        '{"criteria_met": false}',
    ],
    "arena_hard_v2": [
        *(f"My final verdict is: [[{each}]]" for each in ("A>>B", "A>B", "A=B", "B>A", "B>>A")),
        "[[A>B]], as I said: [[A>B]]",
    ],
}


def reply(name, question):
    digest = hashlib.sha256(question.encode("utf-8", "surrogatepass")).digest()
    return REPLIES[name][digest[0] % len(REPLIES[name])]
