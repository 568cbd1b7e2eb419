"""Write the example tasks of the shell, with gold and wrong calls. `python generate.py FOLDER`"""

import json
import sys
from pathlib import Path
from typing import Any

SYSTEM = (
    "You work in a shell on a Linux machine without a network. Use the tools to do the task, check"
    " the result, and then say in one sentence what you did."
)


def task(prompt: str, gold: list[Any], wrong: list[Any], **fields: Any) -> dict[str, Any]:
    given = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    return {
        "responses_create_params": {"input": given},
        **fields,
        "gold_items": items(gold),
        "wrong_items": items(wrong),
    }


def items(calls: list[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number, (name, arguments) in enumerate(calls):
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}"}
        call |= {"name": name, "arguments": json.dumps(arguments), "status": "completed"}
        found += [
            call,
            {"type": "function_call_output", "call_id": f"call_{number}", "output": "done"},
        ]
    text = {"type": "output_text", "text": "It is done.", "annotations": []}
    message = {"type": "message", "role": "assistant", "id": "msg_0", "status": "completed"}
    return [*found, {**message, "content": [text]}]


def bug() -> dict[str, Any]:
    source = (
        "def median(numbers):\n    ordered = sorted(numbers)\n    middle = len(ordered) // 2\n"
        "    return ordered[middle]\n"
    )
    tests = (
        "from stats import median\n\n\ndef test_odd():\n    assert median([3, 1, 2]) == 2\n\n\n"
        "def test_even():\n    assert median([4, 1, 3, 2]) == 2.5\n"
    )
    fix = {
        "path": "stats.py",
        "old": "    return ordered[middle]\n",
        "new": "    if len(ordered) % 2:\n        return ordered[middle]\n"
        "    return (ordered[middle - 1] + ordered[middle]) / 2\n",
    }
    cheat = {"path": "/work/conftest.py", "content": "import os\nos._exit(0)\n"}
    return task(
        "median in /work/stats.py is wrong for an even count of numbers. Repair it.",
        [("read_file", {"path": "stats.py"}), ("edit", fix), ("exec", {"command": "git diff"})],
        [("write_file", cheat)],
        files={"/work/stats.py": source},
        setup="git init -q && git add . && git -c user.name=a -c user.email=a@b.c commit -qm start",
        verifier={
            "kind": "command",
            "command": "cd /verify && PYTHONPATH=/work:$PYTHONPATH python3 -m pytest -q",
            "files": {"/verify/test_stats.py": tests},
            "keep": ["/work/stats.py"],
        },
    )


def count() -> dict[str, Any]:
    text = "".join(f"{n % 7} {'error' if n % 3 == 0 else 'ok'}\n" for n in range(100))
    command = "grep -c error /work/log.txt > /work/count.txt"
    return task(
        "Write the number of lines with error in /work/log.txt to /work/count.txt.",
        [("exec", {"command": command})],
        [("write_file", {"path": "count.txt", "content": "33\n"})],
        files={"/work/log.txt": text},
        verifier={"kind": "files", "expected": {"/work/count.txt": "34", "/work/log.txt": text}},
    )


def rename() -> dict[str, Any]:
    files = {f"/work/photo {n}.JPG": f"picture {n}\n" for n in range(5)}
    expected: dict[str, Any] = {f"/work/photo_{n}.jpg": f"picture {n}\n" for n in range(5)}
    command = 'for f in *.JPG; do g="${f// /_}"; mv "$f" "${g%.JPG}.jpg"; done'
    return task(
        "Rename the files in /work: no blanks, an underscore for each, and .jpg at the end.",
        [("exec", {"command": command})],
        [("exec", {"command": 'for f in *.JPG; do cp "$f" "${f%.JPG}.jpg"; done'})],
        files=files,
        verifier={"kind": "files", "expected": {**expected, **dict.fromkeys(files)}},
    )


def build() -> dict[str, Any]:
    source = '#include <stdio.h>\nint main(void) { printf("%d\\n", square(7)); }\n'
    square = "int square(int n) { return n * n; }\n"
    fixed = f"#include <stdio.h>\n{square}" + source.split("\n", 1)[1]
    compiled = ("exec", {"command": "gcc -Wall -Werror -o main main.c && ./main"})
    return task(
        "/work/main.c does not compile. Add the function square, and build /work/main.",
        [("write_file", {"path": "main.c", "content": fixed}), compiled],
        [("write_file", {"path": "main", "content": "#!/bin/sh\necho 48\n"})],
        files={"/work/main.c": source},
        verifier={"kind": "command", "command": 'test "$(/work/main)" = 49'},
    )


def server() -> dict[str, Any]:
    program = (
        "import http.server\n\n\nclass Answer(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n        self.send_response(200)\n        self.end_headers()\n"
        "        self.wfile.write(b'the word is ' + self.path[1:].encode())\n\n\n"
        "http.server.HTTPServer(('127.0.0.1', 8000), Answer).serve_forever()\n"
    )
    ask = (
        "import urllib.request as r; open('/work/answer.txt', 'wb')"
        ".write(r.urlopen('http://127.0.0.1:8000/teapot').read())"
    )
    wait = "until (echo > /dev/tcp/127.0.0.1/8000) 2> /dev/null; do sleep 0.05; done"
    return task(
        "Start /work/server.py, and write what it answers to GET /teapot to /work/answer.txt.",
        [
            ("open_terminal", {"name": "server", "command": "python3 server.py"}),
            ("exec", {"command": f'{wait}; python3 -c "{ask}"'}),
        ],
        [("write_file", {"path": "answer.txt", "content": "teapot"})],
        files={"/work/server.py": program},
        verifier={"kind": "files", "expected": {"/work/answer.txt": "the word is teapot"}},
    )


def total() -> dict[str, Any]:
    data = json.dumps({"b": 2, "a": [3, 1, 2]})
    return task(
        "Write /work/sum.json: an object whose sum is the sum of all numbers in /work/data.json.",
        [("exec", {"command": f"python3 -c {json.dumps(SUM)}"})],
        [("write_file", {"path": "sum.json", "content": '{"sum": 6}'})],
        files={"/work/data.json": data},
        verifier={"kind": "files", "expected": {"/work/sum.json": {"contains": ['"sum"', "8"]}}},
    )


SUM = (
    "import json; d = json.load(open('data.json'));"
    " json.dump({'sum': sum(d['a']) + d['b']}, open('sum.json', 'w'))"
)


def main(folder: str) -> None:
    rows = [bug(), count(), rename(), build(), server(), total()]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    Path(folder, "example.jsonl").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
