"""Run the commands of docs/from-rollouts-to-dpo.md, and print what each says. A test runs them too,
so the guide cannot differ from what is measured.

python examples/dpo/demo.py [--folder results/dpo] [--small]
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/from-rollouts-to-dpo.md"
FOLDER = "results/dpo"
SMALL = ("--train 1200 --test 512", "--train 24 --test 16")
"""What the guide draws, and few tasks instead, only to see that it runs."""

NOT_READ = r"Collecting|\s*[\"{}\[\]]"
"""Progress, and metrics as JSON."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default=FOLDER)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    began = time.monotonic()
    for command in read_commands(args.folder, is_small=args.small):
        run(command)
    print(f"\n{time.monotonic() - began:.0f} seconds")


def read_commands(folder: str, *, is_small: bool) -> Iterator[str]:
    """The commands of the guide's numbered steps."""
    for step in re.findall(r"^## \d.*?(?=^## |\Z)", GUIDE.read_text(), re.MULTILINE | re.DOTALL):
        for block in re.findall(r"^```bash\n(.*?)^```", step, re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                command = " ".join(line.split()).replace(FOLDER, folder)
                yield command.replace(*SMALL) if is_small else command


def run(command: str) -> None:
    """Print a command and what people read of its output; end if it fails."""
    print(f"\n$ {command}", flush=True)
    words = shlex.split(command)
    done = subprocess.run(
        [str(Path(sys.executable).with_name(words[0])), *words[1:]],  # of this environment
        cwd=ROOT,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode:
        sys.exit("\n".join([*lines[-30:], f"failed with status {done.returncode}"]))
    print("\n".join(line for line in lines if not re.match(NOT_READ, line)), flush=True)


if __name__ == "__main__":
    main()
