"""An ng_run in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import HANG_S

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def ng_run(folder: Path, *words: str, config: str = "configs/demo.yaml") -> Iterator[str]:
    """Context in which the servers of a configuration run; the URL of their head server."""
    command = [
        str(Path(sys.executable).with_name("ng_run")),
        f"+config_paths=[{config}]",
        "+head_server.port=0",
        f"+log_dir={folder / 'logs'}",
        *words,
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready = next(line for line in process.stdout if "Head server: " in line)
            yield ready.partition("Head server: ")[2].partition(" ")[0].rstrip(".")
        finally:
            process.terminate()
            process.wait(HANG_S)
