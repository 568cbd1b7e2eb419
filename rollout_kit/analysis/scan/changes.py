"""The files that a call of a tool changes, as far as its arguments name them.

Commands are read word by word. Nothing of them is run or matched as an expression.
"""

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...store.steps import ToolUse, parse_json
from ...types import JsonObject

MAX_LOOKED = 20_000
"""Characters of a command or a patch that are looked through."""

WRITES = (
    *("edit", "write", "create", "patch", "replace", "insert", "delete", "remove", "rename"),
    *("move", "overwrite"),
)
"""Parts of the name of a tool that changes files."""

READS = frozenset({"view", "read", "cat", "open", "list", "search", "find"})

PATHS = ("path", "file_path", "filename", "file", "target_file", "filepath")
"""Arguments that name a file."""

PATCHED = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "+++ b/")

SHELLS = ("bash", "shell", "exec", "terminal", "command", "run", "python", "sh")

CHANGING = frozenset({"rm", "truncate", "patch"})
"""Commands that change each file that they name."""

MAKING = frozenset({"tee", "touch", "cp", "mv"})
"""Commands whose last file may be new."""

GIT = frozenset({"checkout", "restore", "rm", "mv", "apply"})

IN_CODE = (".write_text(", ".write(", ".unlink(", "os.remove(", "shutil.move(", ", 'w'", ', "w"')
"""Parts of a line of Python that changes a file."""

STARTS = frozenset({"sudo", "env", "time", "command", "exec", "nohup"})
"""Words in front of a command."""


class FileChange(NamedTuple):
    """`is_new`: the call may make the file."""

    path: str
    is_new: bool = False


def find_changes(tool: ToolUse) -> Iterator[FileChange]:
    """The files that a call changes."""
    name, found = tool.name.lower(), parse_json(tool.arguments)
    given: JsonObject = found if isinstance(found, dict) else {"input": tool.arguments}
    verb = str(given.get("command", "")).split(" ", 1)[0]
    writes = any(part in name for part in WRITES)
    if (writes and verb not in READS) or verb in ("str_replace", "create", "insert"):
        is_new = "create" in name or "write" in name or verb == "create"
        for key in PATHS:
            if isinstance(path := given.get(key), str):
                yield FileChange(path, is_new)
        text = str(given.get("input") or given.get("patch") or given.get("diff") or "")
        for line in text[:MAX_LOOKED].splitlines():
            for mark in PATCHED:
                if line.startswith(mark):
                    path = line.removeprefix(mark).strip()
                    yield FileChange(path, is_new or mark == "*** Add File: ")
    elif any(part in name for part in SHELLS):
        for value in given.values():
            text = " ".join(map(str, value)) if isinstance(value, list) else value
            if isinstance(text, str):
                yield from _in_command(text[:MAX_LOOKED])


def _in_command(text: str) -> Iterator[FileChange]:
    end = ""
    for line in text.splitlines():
        if end:  # within a text that is handed to a command
            end = "" if line.strip() == end else end
            yield from _in_code(line)
            continue
        yield from _in_code(line)
        for part in line.replace("&&", "\n").replace(";", "\n").replace("|", "\n").splitlines():
            yield from _in_part(_split(part))
        _, mark, rest = line.partition("<<")
        if mark and not rest.startswith("<"):
            end = (rest.lstrip("-").split() or [""])[0].strip("'\"")


def _split(part: str) -> list[str]:
    """The words of a command, without their quotes if these are in pairs."""
    if not {*"'\"\\"}.intersection(part):
        return part.split()
    try:
        return shlex.split(part)
    except ValueError:
        return part.split()


def _in_part(words: Sequence[str]) -> Iterator[FileChange]:
    """The files that one simple command changes."""
    words = list(words)
    for at, word in enumerate(words):
        name = word.lstrip("0123456789")
        if name.startswith(">") and not name.startswith(">&"):
            target = name.lstrip(">") or (words[at + 1] if at + 1 < len(words) else "")
            if _is_path(target):
                yield FileChange(_clean(target), True)
            words = words[:at]
            break
    while words and (words[0] in STARTS or "=" in words[0]):
        words = words[1:]
    if not words:
        return
    verb, *rest = words
    verb = verb.rsplit("/", 1)[-1]
    paths = [_clean(word) for word in rest if _is_path(word)]
    if verb == "git" and rest and rest[0] in GIT:
        verb = "rm"
    if verb in ("sed", "perl") and any(
        word.startswith(("-i", "-pi", "--in-place")) for word in rest
    ):
        verb = "rm"
    if verb in CHANGING:
        yield from map(FileChange, paths)
    elif verb == "mv":
        yield from map(FileChange, paths[:-1])
    if verb in MAKING and paths:
        yield FileChange(paths[-1], True)


def _in_code(line: str) -> Iterator[FileChange]:
    """The files that a line of Python changes: those that it names in quotes."""
    if any(mark in line for mark in IN_CODE):
        for quoted in line.replace('"', "'").split("'")[1::2]:
            if _is_path(quoted) and " " not in quoted:
                yield FileChange(_clean(quoted))


def _clean(word: str) -> str:
    return word.strip("\"'`(),:")


def _is_path(word: str) -> bool:
    word = _clean(word)
    if word.startswith(("-", "s/", "http", "/dev/", "&", "$")) or not word.strip("./"):
        return False
    return "." in word.rsplit("/", 1)[-1] or "/" in word or is_test(word)


def is_test(path: str) -> bool:
    """Whether a path is that of a test, or of a folder of tests."""
    *folders, name = path.replace("\\", "/").lower().rstrip("/").split("/")
    stem = name.rsplit(".", 1)[0]
    if "." not in name:
        folders.append(name)
    return (
        name.startswith("test_")
        or stem.endswith(("_test", ".test", ".spec", "_spec"))
        or name == "conftest.py"
        or any(folder in ("test", "tests", "__tests__", "spec") for folder in folders)
    )
