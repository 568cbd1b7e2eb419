"""The shape of the code: which package may import which, and how large a piece may grow."""

import ast
import re
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rollout_kit"
FOLDERS = ("rollout_kit", "resources_servers", "responses_api_models", "responses_api_agents")

WORDS = [
    *("_version", "_moved", "responses", "trajectory", "types", "errors", "session", "secrets"),
    *("time_limit", "reading", "items"),
]
"""Modules at the top level that every room may import."""

ROOMS = [
    *("serving", "config", "store", "launch", "formats", "analysis", "collecting", "api"),
    *("authoring", "rl", "commands"),
]
"""The folders of the package, from the ground floor up: a room imports itself and the rooms below
it."""

MAX_TOP_LEVEL, MAX_IN_PACKAGE = 11, 20
"""Modules at the top level and in a package, `__init__` not counted."""

CROWDED = {
    "commands": "one module per command; COMMANDS lists them",
}
"""Folders of more modules, and why."""

LARGE = {
    "rollout_kit/config/keys.py": "every key of every command, in one list",
    "rollout_kit/config/commands.py": "one entry for each command, in one table",
    "rollout_kit/serving/hosted_model.py": "a request's whole way: written, sent, refused, read",
    "rollout_kit/secrets.py": "what is a secret, how it may be spelled, and how it is masked",
    "rollout_kit/store/index.py": "a record is made, kept and looked up by the same columns",
    "rollout_kit/collecting/cluster/leases.py": "a lease and the queue that hands it out",
}
"""Modules of more lines, and why."""

MAX_MODULE, MAX_FUNCTION = 500, 60
"""Lines."""

NO_HTTP = ("store", "analysis.metrics", "collecting.pacing")
"""Packages that work on files and numbers, and never see how a server is reached."""


def package_of(module: str) -> str:
    """`collector` of `collector.plan`; `words` for the modules that everything may import."""
    first = module.split(".")[0]
    return "words" if first in WORDS else first


@cache
def modules() -> dict[str, Path]:
    """Dotted name below the package → file."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if not name.endswith("__init__"):
            found[name] = path
    return found


def imports(path: Path) -> set[str]:
    """Modules and rooms of ours that a module imports: at its top, inside a function, and for types
    alone."""
    known = set(modules()) | set(ROOMS)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            package = path.relative_to(PACKAGE).parts[: -node.level]
            base = ".".join([*package, *(node.module or "").split(".")]).strip(".")
            found |= {base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)}
    return found & known


def test_every_folder_is_a_known_room() -> None:
    assert {package_of(name) for name in modules()} == {"words", *ROOMS}


def test_imports_between_rooms_go_down() -> None:
    order = {name: number for number, name in enumerate(["words", *ROOMS])}
    wrong = [
        f"{name} imports {other}"
        for name, path in modules().items()
        for other in imports(path)
        if order[package_of(other)] > order[package_of(name)]
    ]
    assert wrong == []


def test_no_module_imports_itself_through_others() -> None:
    graph = {name: imports(path) & set(modules()) for name, path in modules().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as found:
        raise AssertionError(" -> ".join(found.args[1])) from None


def test_base_names_are_unique_within_a_room() -> None:
    """`metrics/groups` and `store/groups/groups` would be told apart by nobody who searches."""
    names = Counter((package_of(name), name.rpartition(".")[2]) for name in modules())
    assert [each for each, number in names.items() if number > 1] == []


def test_helpers_of_tests_share_no_name_with_a_server_s_module() -> None:
    """Both may be imported by bare name, and the first one would stand for the other."""
    helpers = {path.stem for path in (ROOT / "tests/helpers").glob("*.py")}
    for folder in FOLDERS[1:]:
        for path in (ROOT / folder).glob("*/*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    assert not helpers & {alias.name for alias in node.names}, path
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    assert node.module not in helpers, path


def test_stages_that_work_on_files_and_numbers_never_see_http() -> None:
    paths = modules()
    for name, path in paths.items():
        if name.startswith(NO_HTTP):
            for other in imports(path):
                assert not other.startswith(("serving.transport", "launch")), name


def test_no_package_is_crowded() -> None:
    top_level = [name for name in modules() if "." not in name]
    assert len(top_level) <= MAX_TOP_LEVEL, top_level
    crowds = Counter(name.rpartition(".")[0] for name in modules() if "." in name)
    crowded = {
        package: number
        for package, number in crowds.items()
        if number > MAX_IN_PACKAGE and package not in CROWDED
    }
    assert not crowded


def test_every_package_says_what_belongs_in_it() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert len(text) > 60, f"{path} has no docstring that says what belongs there"


def test_class_names_are_unique() -> None:
    """One name means one thing, so that a reader never asks which of two is meant."""
    names = Counter(
        node.name
        for path in modules().values()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name: number for name, number in names.items() if number > 1} == {}


def test_servers_import_the_package_and_never_each_other() -> None:
    for folder in FOLDERS[1:]:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    assert node.module.split(".")[0] not in FOLDERS[1:], path


def test_no_piece_outgrows_a_reader_s_patience() -> None:
    large = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "tests" in path.parts:
                continue
            name, text = str(path.relative_to(ROOT)), path.read_text()
            if text.count("\n") > MAX_MODULE and name not in LARGE:
                large.append(f"{name}: {text.count(chr(10))} lines")
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    length = (node.end_lineno or 0) - node.lineno + 1
                    if length > MAX_FUNCTION:
                        large.append(f"{name}:{node.lineno} {node.name}: {length} lines")
    assert large == []


def test_only_the_edge_prints() -> None:
    for path in PACKAGE.rglob("*.py"):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ]
        assert not calls or path.stem == "progress" or path.parent.name == "commands", path


def test_the_architecture_page_names_six_files_that_can_be_read_in_one_go() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    assert text.count("\n") <= 150
    followed = [PACKAGE / path for path in re.findall(r"^\d\. `([a-z_/]+\.py)`", text, re.M)]
    assert len(followed) == 6
    assert sum(path.read_text().count("\n") for path in followed) <= 2_000
    for path in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", text):
        assert (PACKAGE / path).is_file() or (ROOT / path).is_file(), path
    named = set(re.findall(r"^\| `([a-z]+)` \|", text, re.M))
    assert named == set(ROOMS)
