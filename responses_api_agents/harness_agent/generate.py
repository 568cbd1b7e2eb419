"""Write example rows: small tasks of the shell, with the commands that solve them.

    python responses_api_agents/harness_agent/generate.py FOLDER [NUMBER]

A scripted model plays `gold_commands` to any agent.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

NUMBER = 6


def make_rows(number: int) -> list[dict[str, Any]]:
    """Rows of three kinds, each with other numbers."""
    draw = random.Random(7)
    return [KINDS[at % len(KINDS)](at, draw) for at in range(number)]


def _count(at: int, draw: random.Random) -> dict[str, Any]:
    words = draw.choices(("ok", "error", "late"), k=40 + at)
    text = "".join(f"{number} {word}\n" for number, word in enumerate(words))
    task = f"Write the number of lines with error in /work/log{at}.txt to /work/count.txt."
    return _row(
        task,
        {f"/work/log{at}.txt": text},
        [f"head -3 log{at}.txt", f"grep -c error /work/log{at}.txt > /work/count.txt"],
        {"/work/count.txt": str(words.count("error")), f"/work/log{at}.txt": text},
    )


def _rename(at: int, draw: random.Random) -> dict[str, Any]:
    old, new = f"total_{at}", f"sum_{draw.randrange(100)}"
    text = f"def {old}(numbers):\n    return sum(numbers)\n\n\nprint({old}([1, 2]))\n"
    return _row(
        f"Rename the function {old} in /work/sums.py to {new}, wherever it is used.",
        {"/work/sums.py": text},
        ["cat sums.py", f"sed -i 's/{old}/{new}/g' /work/sums.py", "python3 sums.py"],
        {"/work/sums.py": text.replace(old, new)},
    )


def _repair(at: int, draw: random.Random) -> dict[str, Any]:
    low, high = sorted(draw.sample(range(2, 99), 2))
    text = f"def clamp(x):\n    return max({high}, min({low}, x))\n"
    wanted = f"def clamp(x):\n    return max({low}, min({high}, x))\n"
    row = _row(
        f"clamp in /work/clamp{at}.py must keep x between {low} and {high}. Repair it.",
        {f"/work/clamp{at}.py": text},
        [
            f"python3 -c 'from clamp{at} import clamp; print(clamp({low - 1}))'",
            f"cat > /work/clamp{at}.py << 'END'\n{wanted}END",
        ],
        {},
    )
    test = (
        f"from clamp{at} import clamp\n\n\ndef test_clamp():\n"
        f"    assert [clamp(0), clamp(500)] == [{low}, {high}]\n"
    )
    row["verifier"] = {
        "kind": "command",
        "command": "cd /verify && PYTHONPATH=/work:$PYTHONPATH python3 -m pytest -q",
        "files": {"/verify/test_clamp.py": test},
        "keep": [f"/work/clamp{at}.py"],
    }
    return row


KINDS = (_count, _rename, _repair)


def _row(
    task: str, files: dict[str, str], commands: list[str], expected: dict[str, str]
) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": task}]},
        "files": files,
        "verifier": {"kind": "files", "expected": expected},
        "gold_commands": commands,
    }


def write_rows(folder: Path, number: int = NUMBER) -> None:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in make_rows(number)]
    (folder / "example.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    write_rows(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else NUMBER)
