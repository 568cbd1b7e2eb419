"""Read a Dockerfile in the subset that can be built without a container engine. Nothing is run.

Supported: FROM, RUN, COPY, ADD of local files, WORKDIR, ENV, USER, ARG, SHELL. Every other line is
a problem with its number.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

KNOWN = ("FROM", "RUN", "COPY", "ADD", "WORKDIR", "ENV", "USER", "ARG", "SHELL")

NAME = re.compile(r"[A-Za-z_]\w*")

VARIABLE = re.compile(r"\\\$|\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})")

URL = re.compile(r"(?i)(https?|ftp|git|ssh)://|git@")

DEFAULT_SHELL = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True)
class BuildProblem:
    """Why something cannot be run here, and the line that prevents it."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RunStep:
    """A command, as arguments, at one line."""

    line: int
    words: tuple[str, ...]
    cwd: str
    user: str
    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Files of the context that are copied. `unpacks`: archives among them are extracted."""

    line: int
    sources: tuple[Path, ...]
    target: str
    is_folder: bool
    owner: str
    mode: str
    unpacks: bool


@dataclass(frozen=True, slots=True)
class FolderStep:
    """A working folder that is made if it is not there."""

    line: int
    path: str


Step = RunStep | CopyStep | FolderStep


@dataclass(slots=True)
class Recipe:
    """What a Dockerfile says."""

    base: str = ""
    base_line: int = 0
    steps: list[Step] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    problems: list[BuildProblem] = field(default_factory=list)


def read_dockerfile(path: Path, name: str = "Dockerfile") -> Recipe:
    """What the Dockerfile says; its problems call it `name`. Its folder is the context."""
    reader = _Reader(path.parent.resolve(), name)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reader.recipe.problems.append(BuildProblem(name, 1, f"cannot be read: {error}"))
        return reader.recipe
    for number, word, rest in _split_lines(text):
        reader.take(number, word, rest)
    if not reader.recipe.base and not reader.recipe.problems:
        reader.refuse(1, "has no FROM")
    return reader.recipe


def _split_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """The instructions: number of the first line, word in capitals, and the rest."""
    parts: list[str] = []
    first, ends_heredoc = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if ends_heredoc:
            ends_heredoc = "" if line == ends_heredoc else ends_heredoc
            continue
        if not line or line.startswith("#"):
            if not parts and re.match(r"#\s*escape\s*=", line):
                yield number, "ESCAPE", ""
            continue
        first = first if parts else number
        if line.endswith("\\"):
            parts.append(line[:-1].rstrip())
            continue
        parts.append(line)
        whole = " ".join(parts).strip()
        parts = []
        word, _, rest = whole.partition(" ")
        if found := re.search(r"<<-?\s*[\"']?(\w+)", rest) if word.upper() in KNOWN else None:
            ends_heredoc = found[1]
            yield first, "HEREDOC", rest
        else:
            yield first, word.upper(), rest.strip()
    if parts:
        word, _, rest = " ".join(parts).strip().partition(" ")
        yield first, word.upper(), rest.strip()


class _Reader:
    """The state of a build, line by line."""

    def __init__(self, context: Path, name: str) -> None:
        self._context, self._name = context, name
        self.recipe = Recipe()
        self._arguments: dict[str, str] = {}
        self._shell: tuple[str, ...] = DEFAULT_SHELL
        self._takers: dict[str, Callable[[int, str], None]] = {
            "FROM": self._take_from,
            "ARG": self._take_arg,
            "ENV": self._take_env,
            "WORKDIR": self._take_workdir,
            "USER": self._take_user,
            "SHELL": self._take_shell,
            "RUN": self._take_run,
            "COPY": self._take_copy,
            "ADD": lambda line, rest: self._take_copy(line, rest, unpacks=True),
        }

    def refuse(self, line: int, reason: str) -> None:
        self.recipe.problems.append(BuildProblem(self._name, line, reason))

    def take(self, line: int, word: str, rest: str) -> None:
        if word == "ESCAPE":
            self.refuse(line, "another escape character is not supported")
        elif word == "HEREDOC":
            self.refuse(
                line, "a here-document is not supported: use a file, or && between commands"
            )
        elif word not in KNOWN:
            self.refuse(line, f"{word} is not supported: remove it, or name a folder for this base")
        elif word not in ("FROM", "ARG") and not self.recipe.base:
            self.refuse(line, f"{word} before FROM")
        else:
            try:
                self._takers[word](line, rest)
            except ValueError as error:
                self.refuse(line, f"{word}: {error}")

    def _fill(self, text: str) -> str:
        """The text with the values of its variables."""
        values = {**self._arguments, **self.recipe.environment}

        def value(found: re.Match[str]) -> str:
            if found[0] == "\\$":
                return "$"
            name, given = found[1] or found[2], values.get(found[1] or found[2], "")
            if found[3] == "-":
                return given or found[4]
            if found[3] == "+":
                return found[4] if given else ""
            return given if name else found[0]

        return VARIABLE.sub(value, text)

    def _take_from(self, line: int, rest: str) -> None:
        words = rest.split()
        if self.recipe.base:
            raise ValueError("a second stage is not supported")
        if words[:1] and words[0].startswith("--platform="):
            words = words[1:]
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
            raise ValueError("one image is expected")
        self.recipe.base, self.recipe.base_line = self._fill(words[0]), line
        self._arguments = {}

    def _take_arg(self, line: int, rest: str) -> None:
        for word in shlex.split(rest):
            name, _, value = word.partition("=")
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name")
            self._arguments[name] = self._fill(value)

    def _take_env(self, line: int, rest: str) -> None:
        if "=" not in rest.split(maxsplit=1)[0]:
            name, _, value = rest.partition(" ")
            pairs = [(name, value.strip())]
        else:
            pairs = [(word.partition("=")[0], word.partition("=")[2]) for word in _words(rest)]
        filled = {name: self._fill(value) for name, value in pairs}
        for name in filled:
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name")
        self.recipe.environment.update(filled)

    def _take_workdir(self, line: int, rest: str) -> None:
        path = str(PurePosixPath(self.recipe.workdir, self._fill(_unquote(rest))))
        if ".." in PurePosixPath(path).parts or not rest:
            raise ValueError("a plain path is expected")
        self.recipe.workdir = path
        self.recipe.steps.append(FolderStep(line, path))

    def _take_user(self, line: int, rest: str) -> None:
        user, _, group = self._fill(_unquote(rest)).partition(":")
        if not re.fullmatch(r"[\w.-]+", user):
            raise ValueError("one user is expected")
        if group and group != user:
            raise ValueError("another group than the user's is not supported")
        self.recipe.user = "" if user in ("root", "0") else user

    def _take_shell(self, line: int, rest: str) -> None:
        words = _read_list(rest)
        if not words:
            raise ValueError("a list of words is expected")
        self._shell = tuple(words)

    def _take_run(self, line: int, rest: str) -> None:
        if rest.startswith("--"):
            raise ValueError(f"{rest.split()[0]} is not supported")
        words = _find_list(rest)
        command = tuple(words) if words is not None else (*self._shell, rest)
        if not rest:
            raise ValueError("a command is expected")
        values = {**self._arguments, **self.recipe.environment}
        step = RunStep(line, command, self.recipe.workdir, self.recipe.user, tuple(values.items()))
        self.recipe.steps.append(step)

    def _take_copy(self, line: int, rest: str, unpacks: bool = False) -> None:
        owner, mode, words = "", "", _read_list(rest) if rest.startswith("[") else _words(rest)
        while words and words[0].startswith("--"):
            name, _, value = words.pop(0).partition("=")
            if name == "--chown":
                owner = self._fill(value)
            elif name == "--chmod" and re.fullmatch(r"[0-7]{3,4}", value):
                mode = value
            else:
                raise ValueError(f"{name} is not supported")
        if len(words) < 2:
            raise ValueError("a source and a target are expected")
        *given, target = [self._fill(each) for each in words]
        sources = tuple(found for each in given for found in self._find(each))
        is_folder = target.endswith("/") or target in (".", "..") or len(sources) > 1
        path = str(PurePosixPath(self.recipe.workdir, target))
        if ".." in PurePosixPath(path).parts:
            raise ValueError("a plain path is expected")
        step = CopyStep(line, sources, path, is_folder, owner, mode, unpacks)
        self.recipe.steps.append(step)

    def _find(self, pattern: str) -> list[Path]:
        """The files of the context that a source names; ValueError if there are none."""
        if URL.match(pattern):
            raise ValueError(f"{pattern} is not in the folder: only local files can be added")
        relative = pattern.lstrip("/") or "."
        if ".." in Path(relative).parts:
            raise ValueError(f"{pattern} leads out of the folder")
        is_pattern = any(each in relative for each in "*?[")
        found = sorted(self._context.glob(relative)) if is_pattern else [self._context / relative]
        found = [each for each in found if each.exists() or each.is_symlink()]
        if not found:
            raise ValueError(f"there is no file {pattern}")
        for each in found:
            if not each.resolve().is_relative_to(self._context):
                raise ValueError(f"{pattern} leads out of the folder")
        return found


def _find_list(text: str) -> list[str] | None:
    """The list of words that a text is; None for a command, which may begin with a bracket too."""
    try:
        return _read_list(text)
    except ValueError:
        return None


def _read_list(text: str) -> list[str]:
    """A list of words in the form of JSON; ValueError if it is none."""
    try:
        found = json.loads(text)
    except ValueError:
        raise ValueError("the list is not JSON") from None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("a list of texts is expected")
    return found


def _words(text: str) -> list[str]:
    return shlex.split(text)


def _unquote(text: str) -> str:
    return "".join(shlex.split(text)) if text[:1] in "\"'" and text else text
