"""Runs of an agent that does chores in a shell, as two models do them: scripted models, real
sessions."""

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import rollout_kit as rk

SHELL = "resources_servers/shell/configs/shell.yaml"

REPEATS = 4

LOOK = "ls -l\nhead -n 5 *"

LOG = "".join(
    f"10:{at:02} {'ERROR disk full' if at % 7 == 3 else 'INFO request served'} node{at % 4}\n"
    for at in range(60)
)

SALES = "region,units\nnorth,12\nsouth,7\nnorth,5\neast,9\nsouth,4\nnorth,1\n"

CONFIG = '{"host": "old.example", "port": 80, "retries": "3"}\n'


ADD_UP = """awk -F, '{n[$1] += $2} END {for (r in n) print r "," n[r]}'"""

REWRITE = """\
python3 - <<'END'
import json
found = json.load(open("config.json"))
found |= {"host": "new.example", "port": 443, "retries": int(found["retries"])}
json.dump(found, open("config.json", "w"))
END"""

MOVE = """\
  n=$((n + 1))
  mv "$each" $(printf 'holiday-%02d.jpg' $n)
done"""


@dataclass(frozen=True)
class Chore:
    """A task: what is asked, the files, the command that does it, one that does not, one that
    fails, and what the files must hold."""

    asked: str
    files: dict[str, str]
    right: str
    wrong: str
    broken: str
    expected: dict[str, Any]


CHORES = (
    Chore(
        "Count the errors of each node in app.log. Write them to errors.txt, the most first, as"
        " `<number> <node>`.",
        {"app.log": LOG},
        "grep ERROR app.log | awk '{print $NF}' | sort | uniq -c |\n  sort -k1,1nr -k2 |"
        " awk '{print $1, $2}' > errors.txt",
        "grep ERROR app.log | awk '{print $NF}' | uniq -c | awk '{print $1, $2}' > errors.txt",
        "jq .errors app.log > errors.txt",
        {"errors.txt": "3 node3\n2 node0\n2 node1\n2 node2\n"},
    ),
    Chore(
        "Add up the units of each region in sales.csv. Write `<region>,<units>` to totals.csv,"
        " sorted by region.",
        {"sales.csv": SALES},
        f"tail -n +2 sales.csv | {ADD_UP} | sort > totals.csv",
        f"{ADD_UP} sales.csv | sort > totals.csv",
        "python3 -c 'import pandas'",
        {"totals.csv": "east,9\nnorth,18\nsouth,11\n"},
    ),
    Chore(
        "config.json should name new.example and port 443, and `retries` should be a number.",
        {"config.json": CONFIG},
        REWRITE,
        "sed -i 's/old.example/new.example/; s/80/443/' config.json",
        "jq '.port = 443' config.json > new.json",
        {"config.json": '{"host": "new.example", "port": 443, "retries": 3}'},
    ),
    Chore(
        "Rename all photos to `holiday-01.jpg`, `holiday-02.jpg` and so on, in the order of their"
        " numbers.",
        {f"IMG {at}.jpg": f"photo {at}\n" for at in (3, 12, 7)},
        "n=0\nls *.jpg | sort -k2 -n | while read -r each; do\n" + MOVE,
        "n=0\nfor each in *.jpg; do\n" + MOVE,
        "mv IMG 3.jpg holiday-01.jpg",
        {f"holiday-0{at}.jpg": f"photo {number}\n" for at, number in ((1, 3), (2, 7), (3, 12))},
    ),
    Chore(
        "Merge a.txt and b.txt into all.txt: each name once, sorted, without empty lines.",
        {"a.txt": "Ada\n\nGrace\nAlan\n", "b.txt": "Grace\nEdsger\n\n"},
        "sort -u a.txt b.txt | grep . > all.txt",
        "cat a.txt b.txt | sort -u > all.txt",
        "sort --unique-lines a.txt b.txt",
        {"all.txt": "Ada\nAlan\nEdsger\nGrace\n"},
    ),
    Chore(
        "hello.sh should print `hello, Ada` when it is called as `./hello.sh Ada`. Write its output"
        " to out.txt.",
        {"hello.sh": "#!/bin/bash\necho hello, $2\n"},
        "sed -i 's/\\$2/$1/' hello.sh\nchmod +x hello.sh\n./hello.sh Ada > out.txt",
        "chmod +x hello.sh\n./hello.sh Ada > out.txt",
        "./hello.sh Ada",
        {"out.txt": "hello, Ada\n"},
    ),
)


class Worker:
    """A model that does the chores: `skill` is the share of them that it does right."""

    def __init__(self, skill: float, seed: int) -> None:
        self._chance, self._skill = Random(seed), skill
        self._plans: dict[str, list[tuple[str, str]]] = {}

    def _plan(self, chore: Chore) -> list[tuple[str, str]]:
        is_right = self._chance.random() < self._skill
        steps = [("I look at the files first.", LOOK)]
        if self._chance.random() > self._skill:
            steps.append(("", chore.broken))
        steps.append(("", chore.right if is_right else chore.wrong))
        if is_right or self._chance.random() < 0.5:
            steps.append(("Is it as asked?", f"head -n 20 {' '.join(chore.expected)}"))
        return steps

    async def __call__(self, params: dict[str, Any]) -> dict[str, Any]:
        calls = [item for item in params["input"] if item.get("type") == "function_call"]
        asked = params["input"][0]["content"]
        chore = next(each for each in CHORES if each.asked == asked)
        name = calls[0]["call_id"].rpartition("_")[0] if calls else f"call_{len(self._plans)}"
        if not calls:
            self._plans[name] = self._plan(chore)
        steps, at = self._plans[name], len(calls)
        items: list[dict[str, Any]] = []
        if at < len(steps):
            says, command = steps[at]
            if says:
                said = {"type": "summary_text", "text": says}
                items.append({"type": "reasoning", "id": f"rs_{at}", "summary": [said]})
            arguments = json.dumps({"command": command})
            items.append(rk.function_call_item("exec", arguments, f"{name}_{at}"))
        else:
            files = " and ".join(list(chore.expected)[-2:])
            items.append(rk.message_item(self._chance.choice(ENDINGS).format(files=files)))
        written, read = len(json.dumps(items)) // 4, len(json.dumps(params["input"])) // 4
        usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        return rk.make_response("scripted", items, usage)


ENDINGS = ("Done: see {files}.", "{files}: written and checked.", "It is in {files} now.")


async def collect_chores(output: Path, skill: float, seed: int) -> None:
    """Four rollouts of each chore."""
    rows = [
        {
            "responses_create_params": {"input": chore.asked},
            "files": {f"/work/{name}": text for name, text in chore.files.items()},
            "verifier": {
                "kind": "files",
                "expected": {f"/work/{name}": text for name, text in chore.expected.items()},
            },
        }
        for chore in CHORES
    ]
    await rk.collect(
        rows,
        model=Worker(skill, seed),
        environment=SHELL,
        output=output,
        num_repeats=REPEATS,
        parallelism=1,
    )
