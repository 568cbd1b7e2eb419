"""A harness: it asks the model which command does the task, runs it, and keeps what it prints.

It knows nothing of rollout_kit, and finds its model as any client of OpenAI does.
"""

import http.client
import json
import os
import subprocess
from urllib.parse import urlsplit

COMMANDS = {
    "1": "wc -l < notes",
    "2": "sort notes",
    "3": "head -n 1 notes",
    "4": "tail -n 1 notes",
    "5": "tac notes",
    "6": "sort -u notes",
    "7": "tr a-z A-Z < notes",
    "8": "nl notes",
}


def ask(task: str) -> str:
    """What the model says."""
    url = urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = http.client.HTTPConnection(url.hostname or "", url.port)
    asked = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": task}]}
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
    }
    connection.request("POST", f"{url.path}/chat/completions", json.dumps(asked), headers)
    reply = json.load(connection.getresponse())
    return reply["choices"][0]["message"]["content"] or ""


def choose(said: str) -> str | None:
    """The command that a reply names first."""
    return next((COMMANDS[letter] for letter in said if letter in COMMANDS), None)


if __name__ == "__main__":
    said = ask(os.environ["TASK"])
    if command := choose(said):
        with open("answer", "w") as answer:
            subprocess.run(["sh", "-c", command], stdout=answer, check=True)
