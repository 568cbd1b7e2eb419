"""A task's folder: its steps, where they run, how they are verified, and what prevents it here.

A task without `[[steps]]` has one step without a name.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..sandbox.roots.build import CannotBuild, choose_base
from ..sandbox.roots.dockerfile import BuildProblem, Recipe, read_dockerfile
from .task_toml import (
    NAME,
    Artifact,
    CollectHook,
    TaskEnvironment,
    TaskStep,
    TaskToml,
    TaskVerifier,
    fill_values,
    find_line,
    read_toml,
)

CANARY = re.compile(r"^(<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)

DOWNLOADS = re.compile(
    r"\s*(?:sudo\s+)?(apt-get|apt|curl|wget|pip3? install|uvx?|npm (?:i|install)|git clone)\b"
)
"""Commands of tests that need the network."""

COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml")

PUBLISHED = "/logs/artifacts"


@dataclass(frozen=True, slots=True)
class StepVerifier:
    """How a step is verified. Without a recipe it sees the agent's final files, else the artifacts
    in a root of its own."""

    script: str
    folders: tuple[Path, ...]
    timeout_s: float
    user: str
    environment: dict[str, str]
    recipe: Recipe | None = None
    settings: TaskEnvironment | None = None
    artifacts: tuple[str, ...] = ()
    collected: tuple[CollectHook, ...] = ()


@dataclass(frozen=True, slots=True)
class HarborStep:
    """What an agent is asked for at a time."""

    name: str
    instruction: str
    timeout_s: float | None
    user: str
    verifier: StepVerifier
    solution: Path | None = None
    solve: str = ""
    workdir: Path | None = None
    min_reward: float | dict[str, float] | None = None
    check: "TaskStep | None" = None


@dataclass(slots=True)
class HarborTask:
    """A folder that was read. It runs here if it has no problems; `notes` say what is otherwise
    than the folder wants it."""

    folder: Path
    name: str
    digest: str
    toml: TaskToml = field(default_factory=TaskToml)
    recipe: Recipe = field(default_factory=Recipe)
    environment: dict[str, str] = field(default_factory=dict)
    steps: list[HarborStep] = field(default_factory=list)
    problems: list[BuildProblem] = field(default_factory=list)
    notes: list[BuildProblem] = field(default_factory=list)

    @property
    def license(self) -> str | None:
        found = self.toml.metadata.get("license")
        return found if isinstance(found, str) else None


def is_task(folder: Path) -> bool:
    return (folder / NAME).is_file()


def find_tasks(folder: Path) -> list[Path]:
    """The folders of tasks at or below a folder, in order."""
    if is_task(folder):
        return [folder]
    found = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        if NAME in names:
            found.append(Path(place))
            folders.clear()
    return found


def sign(folder: Path) -> str:
    """Changes with the names, sizes and times of the files of a folder. Quicker than `digest`."""
    found = hashlib.sha256()
    for path in _list_files(folder):
        status = path.lstat()
        found.update(f"{path}\0{status.st_size} {status.st_mtime_ns} {status.st_mode}\0".encode())
    return found.hexdigest()


def compute_digest(folder: Path) -> str:
    """Of the names and contents of all files."""
    found = hashlib.sha256()
    for path in _list_files(folder):
        mode = "x" if path.stat().st_mode & 0o100 else "-"
        found.update(f"{path.relative_to(folder)}\0{mode}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def _list_files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if path.is_file():
                yield path


def read_task(
    folder: Path, roots: Mapping[str, str], allowed: list[str] | None = None
) -> HarborTask:
    """What a folder says. `allowed`: the hosts that the owner lets sessions reach."""
    folder = folder.resolve()
    task = HarborTask(folder, folder.name, compute_digest(folder))
    try:
        text = (folder / NAME).read_text()
    except (OSError, UnicodeDecodeError) as error:
        task.problems.append(BuildProblem(NAME, 1, f"cannot be read: {error}"))
        return task
    read, problems = read_toml(text)
    task.problems += problems
    if read is None:
        return task
    _Reader(task, read, text, roots, allowed or []).read()
    return task


class _Reader:
    """Fills in a task, and notes the line of each problem."""

    def __init__(
        self,
        task: HarborTask,
        toml: TaskToml,
        text: str,
        roots: Mapping[str, str],
        allowed: list[str],
    ) -> None:
        self._task, self._toml, self._text = task, toml, text
        self._roots, self._allowed, self._folder = roots, allowed, task.folder
        task.toml = toml

    def read(self) -> None:
        task, environment = self._task, self._toml.environment
        if self._toml.task is not None:
            task.name = self._toml.task.name
        self._check_environment(environment, ("environment",))
        task.recipe = self._read_recipe(self._folder / "environment", environment, "environment")
        if environment.workdir:
            task.recipe.workdir = environment.workdir
        task.environment = {**task.recipe.environment, **self._fill(environment.env, "environment")}
        self._fill(self._toml.solution.env, "solution")
        if self._toml.steps:
            task.steps = [self._read_step(step) for step in self._toml.steps]
        else:
            task.steps = [self._read_only_step()]
        for path in self._folder.rglob(".harborignore"):
            where = str(path.relative_to(self._folder))
            self._refuse(BuildProblem(where, 1, "files to ignore are not supported"))

    def _refuse(self, problem: BuildProblem) -> None:
        if problem not in self._task.problems:
            self._task.problems.append(problem)

    def _at(self, *keys: str) -> int:
        return find_line(self._text, *keys)

    def _check_environment(self, given: TaskEnvironment, place: tuple[str, ...]) -> None:
        refused = {
            "gpus": "no GPU is given to a session" if given.gpus else "",
            "tpu": "no TPU is given to a session" if given.tpu is not None else "",
            "mcp_servers": "MCP servers of a task are not supported" if given.mcp_servers else "",
            "os": "" if given.os == "linux" else f"{given.os} does not run here",
        }
        for key, why in refused.items():
            if why:
                self._refuse(BuildProblem(NAME, self._at(*place, key), why))
        if given.skills_dir:
            self._note("skills are not copied for the agent", *place, "skills_dir")
        if given.cpus:
            self._note("the number of processors is not limited", *place, "cpus")
        self._check_network(given.network_mode or "public", given.allowed_hosts or [], place)

    def _check_network(self, mode: str, hosts: list[str], place: tuple[str, ...]) -> None:
        if mode == "public" and not self._allowed:
            self._note_downloads()
        missing = [each for each in hosts if not {each, "*"} & {*self._allowed}]
        if mode == "allowlist" and missing:
            why = f"wants to reach {missing[0]}, which allowed_hosts of the server does not name"
            self._refuse(BuildProblem(NAME, self._at(*place, "allowed_hosts"), why))

    def _note_downloads(self) -> None:
        """Note the lines of tests that load something from the network, which they do not reach."""
        for path in sorted(self._folder.rglob("test.sh")):
            where = str(path.relative_to(self._folder))
            lines = path.read_text(errors="replace").splitlines()
            for number, line in enumerate(lines, 1):
                if found := DOWNLOADS.match(line):
                    why = f"{found[1]} reaches no network: name hosts as allowed_hosts"
                    problem = BuildProblem(where, number, why)
                    if problem not in self._task.notes:
                        self._task.notes.append(problem)

    def _note(self, text: str, *keys: str) -> None:
        self._task.notes.append(BuildProblem(NAME, self._at(*keys), text))

    def _fill(self, given: dict[str, str], *place: str) -> dict[str, str]:
        try:
            return fill_values(given)
        except ValueError as error:
            line = next(
                (self._at(*place, "env", key) for key, text in given.items() if "${" in text), 1
            )
            self._refuse(BuildProblem(NAME, line, str(error)))
            return {}

    def _read_recipe(self, folder: Path, given: TaskEnvironment, label: str) -> Recipe:
        """What is built for an environment; its problems are those of the task."""
        for name in COMPOSE:
            if (folder / name).is_file():
                where = f"{label}/{name}"
                self._refuse(BuildProblem(where, 1, "several containers are not supported"))
        path, name = folder / "Dockerfile", f"{label}/Dockerfile"
        if given.docker_image and label != "tests":
            line = self._at("environment", "docker_image")
            recipe, name = Recipe(base=given.docker_image, base_line=line), NAME
        elif path.is_file():
            recipe = read_dockerfile(path, name)
        else:
            self._refuse(BuildProblem(name, 1, "is missing"))
            return Recipe()
        for problem in recipe.problems:
            self._refuse(problem)
        if not recipe.problems:
            try:
                choose_base(recipe, self._roots, name)
            except CannotBuild as error:
                self._refuse(error.problem)
        return recipe

    def _read_instruction(self, path: Path) -> str:
        try:
            lines = path.read_text().split("\n")
        except (OSError, UnicodeDecodeError):
            where = str(path.relative_to(self._folder))
            self._refuse(BuildProblem(where, 1, "is missing or no text"))
            return ""
        while lines and CANARY.match(lines[0].strip()):
            lines.pop(0)
        while lines and not lines[0].strip():
            lines.pop(0)
        return "\n".join(lines)

    def _read_only_step(self) -> HarborStep:
        toml, folder = self._toml, self._folder
        verifier = self._read_verifier(toml.verifier, None, [folder / "tests"])
        return HarborStep(
            "",
            self._read_instruction(folder / "instruction.md"),
            toml.agent.timeout_sec,
            self._name_user(toml.agent.user),
            verifier,
            *self._find_solution(folder),
        )

    def _read_step(self, step: TaskStep) -> HarborStep:
        toml, folder = self._toml, self._folder / "steps" / step.name
        if not folder.resolve().is_relative_to(self._folder):
            self._refuse(
                BuildProblem(NAME, self._at("steps"), f"{step.name} leads out of the folder")
            )
        verifier = self._read_verifier(
            toml.verifier, step, [self._folder / "tests", folder / "tests"]
        )
        solution, solve = self._find_solution(folder)
        if solution is None:
            solution, solve = self._find_solution(self._folder)
        workdir = folder / "workdir"
        timeout_s = step.agent.timeout_sec
        user = toml.agent.user if step.agent.user is None else step.agent.user
        return HarborStep(
            step.name,
            self._read_instruction(folder / "instruction.md"),
            toml.agent.timeout_sec if timeout_s is None else timeout_s,
            self._name_user(user),
            verifier,
            solution,
            solve,
            workdir if workdir.is_dir() else None,
            step.min_reward,
            step,
        )

    def _name_user(self, user: str | int | None) -> str:
        return self._task.recipe.user if user is None else str(user)

    def _find_solution(self, folder: Path) -> tuple[Path | None, str]:
        found = folder / "solution"
        return (found, "solve.sh") if (found / "solve.sh").is_file() else (None, "")

    def _read_verifier(
        self, whole: TaskVerifier, step: TaskStep | None, folders: list[Path]
    ) -> StepVerifier:
        own = step.verifier if step else whole
        mode = own.mode or whole.mode or "shared"
        folders = [each for each in folders if each.is_dir()]
        given = own.model_fields_set
        script = next((each for each in reversed(folders) if (each / "test.sh").is_file()), None)
        recipe, settings, is_bundled = None, None, False
        if mode == "separate":
            recipe, settings, is_bundled = self._read_separate(whole, own, folders)
        if script is None and not is_bundled:
            where = f"steps/{step.name}/tests/test.sh" if step else "tests/test.sh"
            self._refuse(BuildProblem(where, 1, "is missing"))
        collected = [*whole.collect, *(own.collect if step else [])]
        for each in collected:
            if each.service != "main":
                self._refuse(
                    BuildProblem(NAME, self._at("verifier", "collect"), "several containers")
                )
        user = own.user if own.user is not None else whole.user
        environment = {**whole.env, **own.env}
        return StepVerifier(
            "/tests/test.sh",
            () if is_bundled else tuple(folders),
            own.timeout_sec if "timeout_sec" in given else whole.timeout_sec,
            ("" if recipe else self._task.recipe.user) if user is None else str(user),
            self._fill(environment, "verifier"),
            recipe,
            settings,
            tuple(self._list_artifacts(step)),
            tuple(collected),
        )

    def _read_separate(
        self, whole: TaskVerifier, own: TaskVerifier, folders: list[Path]
    ) -> tuple[Recipe, TaskEnvironment, bool]:
        """The root of a verifier, and whether its tests are in it."""
        settings = own.environment or whole.environment or self._toml.environment
        if own.environment or whole.environment:
            self._check_environment(settings, ("verifier", "environment"))
        for folder in reversed(folders):
            if (folder / "Dockerfile").is_file():
                label = str(folder.relative_to(self._folder))
                return self._read_recipe(folder, TaskEnvironment(), label), settings, True
        image = settings.docker_image or self._toml.environment.docker_image
        base = TaskEnvironment(docker_image=image)
        recipe = self._read_recipe(self._folder / "environment", base, "environment")
        is_bundled = bool((own.environment or whole.environment) and settings.docker_image)
        return recipe, settings, is_bundled

    def _list_artifacts(self, step: TaskStep | None) -> Iterator[str]:
        yield PUBLISHED
        for each in [*self._toml.artifacts, *(step.artifacts if step else [])]:
            artifact = Artifact(source=each) if isinstance(each, str) else each
            if artifact.service not in (None, "main"):
                self._refuse(BuildProblem(NAME, self._at("artifacts"), "several containers"))
            yield artifact.source
