"""The options of the installed vLLM, asked for once and cached in the user's cache folder.

The list in the repository is that of one release; this one is that of the executable.
"""

import hashlib
import json
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from rollout_kit.errors import OutputError
from rollout_kit.reading import cache_folder
from rollout_kit.store.files import write_atomically

EXTRACT = Path(__file__).with_name("extract_options.py")

LAYOUT = "2"
"""Part of the cache key; increment it if the same vLLM would tell other options."""

TIMEOUT_S = 180.0
"""Importing vLLM takes ten seconds, and more from a cold disk."""

INTERPRETER = re.compile(rb"#!\s*(?:\S*/env\s+)?(\S*python\S*)|'''exec' \"?([^\s\"]+)")
"""In the first lines of a console script."""

Options = dict[str, dict[str, str]]


def known(executable: str) -> Options | None:
    """The cached options; None if there are none."""
    with suppress(OSError, ValueError):
        if (kept := _kept(executable)) is not None:
            return json.loads(kept.read_text("utf-8"))["options"]
    return None


def options(executable: str) -> Options | None:
    """Option → its kind, as in vllm_options.json; None if this vLLM cannot be asked."""
    if (found := known(executable)) is not None:
        return found
    if (python := _python(executable)) is None:
        return None
    if (told := _asked(python)) is None:
        return None
    with suppress(OSError, OutputError):
        if (kept := _kept(executable)) is not None:
            _keep(kept, told)
    return json.loads(told)["options"]


def _asked(python: str) -> str | None:
    try:
        done = subprocess.run(
            [python, "-I", str(EXTRACT)],
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        json.loads(done.stdout)["options"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None
    return done.stdout


def _python(executable: str) -> str | None:
    """The Python interpreter of a console script; None for other executables."""
    try:
        with open(executable, "rb") as file:
            found = INTERPRETER.search(b"\n".join(file.read(1024).split(b"\n")[:3]))
    except OSError:
        return None
    if not found:
        return None
    return shutil.which((found[1] or found[2]).decode("utf-8", "replace"))


def _kept(executable: str) -> Path | None:
    """Where the options are cached: by path, size and time of the executable, which change with
    each installation. None without a cache folder."""
    if (folder := cache_folder()) is None:
        return None
    path = Path(executable).resolve()
    about = path.stat()
    named = f"{LAYOUT}:{path}:{about.st_mtime_ns}:{about.st_size}"
    digest = hashlib.blake2b(named.encode(), digest_size=8).hexdigest()
    return folder / "vllm_options" / f"{digest}.json"


def _keep(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
