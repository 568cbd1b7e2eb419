"""Every YAML and every shell block of every document is valid, also one that no test runs.

A shell block is run in bash with stand-ins for all programs, which note their arguments. Then each
of our commands reads its arguments, and other programs are held to what is known of them.
"""

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from support import HANG_S, blocks
from test_readme import documents
from workplace import ROOT

from rollout_kit._moved import home_of
from rollout_kit.analysis.export.pairs import read_rules
from rollout_kit.authoring.scaffold import write_server
from rollout_kit.collecting.data.mapping import Mapping
from rollout_kit.commands import entry
from rollout_kit.commands import list as list_command
from rollout_kit.config import load as loading
from rollout_kit.config.benchmarks.definition import HARBOR, read_definition
from rollout_kit.config.commands import COMMANDS
from rollout_kit.config.keys import PairsConfig, ValidateConfig
from rollout_kit.config.shard import KUBERNETES, SLURM
from rollout_kit.serving import registry
from rollout_kit.store.arms.read import read_arms

MODELS, RESOURCES, AGENTS = registry.TYPES

STAND_IN = """#!/bin/bash
note=$(/usr/bin/mktemp "$CALLS/XXXXXX")
printf '%s\\0' "${0##*/}" "$@" > "$note"
[ "${0##*/}" != ssh ] || exec /bin/bash -c "${*:2}"
"""

PYTHONS = ("CHECKOUT/.rl/bin", ".venv/bin")
"""Where else blocks look for an interpreter."""

TOOLS = (
    "curl jq head tail sort uniq wc cat sed awk ssh scp git uv vllm ray split column redis-server"
    " vf-eval"
)

SERVER = """
from pydantic import ConfigDict

from rollout_kit import ResourcesServer
from rollout_kit.serving.service import ServerConfig


class StandIn(ResourcesServer):
    class Config(ServerConfig):
        model_config = ConfigDict(extra="allow")

    def verify(self, task, response):
        return 1.0
"""
"""A server of the reader's."""

ENVIRONMENT = """
{name}:
  resources_servers: {{string_match: {{}}}}
{name}_simple_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {{type: resources_servers, name: {name}}}
      model_server: {{type: responses_api_models, name: policy_model}}
"""

MODEL = "{name}: {{responses_api_models: {{simulated_model: {{}}}}}}\n"

HOSTED = {"policy_base_url": "http://h.test/v1", "policy_api_key": "k", "policy_model_name": "m"}
"""The reader's `env.yaml`."""

SET = {"TOKEN": "the-token-of-a-run"}
"""Variables of the reader's shell."""

READERS = {
    **{f"{name}.yaml": ENVIRONMENT.format(name=name) for name in ("my_env", "my_task")},
    **{
        f"{name}.yaml": MODEL.format(name="policy_model")
        for name in ("my_model", "before", "after")
    },
}
"""Files of the reader's that a document names without showing them."""

GYM = {
    "resources_servers/{}/configs/{}.yaml": ("arc_agi", "math_advanced_calculations"),
    "benchmarks/{}/config.yaml": ("gpqa",),
    "environments/{}/config.yaml": ("langgraph_reflection_reasoning_gym",),
    "responses_api_agents/{}/configs/{}.yaml": ("remote_agent",),
    "responses_api_agents/{}/configs/acereason-math.yaml": ("verifiers_agent",),
}
"""Files of a checkout of NeMo Gym that a document names."""


class Found(NamedTuple):
    """A block and where it stands."""

    place: str
    language: str
    file: str | None
    text: str


def find_blocks() -> Iterator[Found]:
    for path in [*documents(), *ROOT.glob("docs/reference/*.md")]:
        text = path.read_text()
        for number, block in enumerate(blocks(text), start=1):
            place = f"{path.relative_to(ROOT)}:{number}"
            yield Found(place, block.language, block.file, block.text)


def find_comments() -> Iterator[Found]:
    """Commands in the comments at the head of a YAML file."""
    for path in chain(ROOT.glob("configs/*.yaml"), ROOT.glob("*/*/configs/*.yaml")):
        lines = re.findall(r"^#   (.*)$", path.read_text(), re.MULTILINE)
        if lines:
            yield Found(str(path.relative_to(ROOT)), "bash", None, "\n".join(lines))


def find_examples() -> Iterator[Found]:
    """The examples of `--help`."""
    for name, command in COMMANDS.items():
        if command.examples:
            yield Found(f"{name} --help", "bash", None, "\n".join(command.examples))


BLOCKS = list(find_blocks())
SHELL = [each for each in BLOCKS if each.language in ("bash", "sh", "shell", "console")]
SHELL += [*find_comments(), *find_examples()]
YAML = [each for each in BLOCKS if each.language in ("yaml", "yml")]
PYTHON = [each for each in BLOCKS if each.language == "python"]


def by_place(found: Found) -> str:
    return found.place


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader of all documents: every file that a document shows, and stand-ins for
    those that it names."""
    folder = tmp_path_factory.mktemp("reader")
    for found in BLOCKS:
        if found.file:
            (folder / found.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / found.file).write_text(found.text)
    for name, text in READERS.items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_server("resources_servers/my_env")
    _write_checkout(folder / "Gym")
    (folder / "tasks").mkdir()
    (folder / "tasks/task.toml").write_text("")
    for name in ("bin", *PYTHONS, "calls"):
        (folder / name).mkdir(parents=True)
    for name in (*COMMANDS, *OTHERS, *TOOLS.split()):
        (folder / "bin" / name).write_text(STAND_IN)
        (folder / "bin" / name).chmod(0o755)
    for name in PYTHONS:
        shutil.copy(folder / "bin/python", folder / name / "python")
    return folder


def _write_checkout(gym: Path) -> None:
    shutil.copytree(ROOT / "tests/gym", gym)
    for pattern, names in GYM.items():
        for name in names:
            path = gym / pattern.format(name, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if name == "remote_agent":
                reference = "{type: resources_servers, name: '???'}"
                keys = f"agent_base_url: '???', resources_server: {reference}"
                path.write_text(f"{name}: {{{AGENTS}: {{{name}: {{{keys}}}}}}}\n")
                app = ROOT / "tests/gym/responses_api_agents/plain_agent/app.py"
                shutil.copy(app, path.parents[1])
            else:
                path.write_text(ENVIRONMENT.format(name=name))


class Understood(Exception):
    """A command has read its arguments."""


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands stop once they have read their arguments."""

    def then_stop(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*given: Any, **more: Any) -> None:
            read(*given, **more)
            raise Understood

        return reading

    for module, name, read in (
        (entry, "load", loading.load),
        (entry, "parse_keys", entry.parse_keys),
        (entry, "parse_files", entry.parse_files),
        (list_command, "parse_keys", loading.parse_keys),
    ):
        monkeypatch.setattr(module, name, then_stop(read))


def run_with_stand_ins(script: str, folder: Path) -> list[list[str]]:
    """The calls of a script: each a name and its arguments."""
    calls = folder / "calls"
    script = script.replace("/path/to/workspace", ".").replace("/tmp/train/bin/", "")
    done = subprocess.run(
        ["/bin/bash", "-uec", script],
        cwd=folder,
        env={"PATH": str(folder / "bin"), "HOME": str(folder), "CALLS": str(calls), **SET},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, script + done.stderr
    found = [path.read_text().split("\0")[:-1] for path in calls.iterdir()]
    for path in calls.iterdir():
        path.unlink()
    return found


@pytest.mark.parametrize("found", SHELL, ids=by_place)
def test_a_shell_block_calls_what_exists_with_what_it_takes(
    found: Found, reader: Path, stopping: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(reader)
    monkeypatch.setenv("HOME", str(reader))
    _set_variables(monkeypatch)
    calls = run_with_stand_ins(found.text, reader)
    assert calls or " > " in found.text, "calls nothing, and writes nothing"
    for name, *words in calls:
        if name in COMMANDS:
            check_ours(name, words)
        elif name in OTHERS:
            OTHERS[name](words, reader)


def _set_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ROOT.glob("*/*/configs/*.yaml"):
        for name in re.findall(r"oc\.env:(\w+)", path.read_text()):
            monkeypatch.setenv(name, "https://h.test")
    for name in ("HTTPS_PROXY", *SLURM, KUBERNETES):
        monkeypatch.setenv(name, "1")


def check_ours(name: str, words: list[str]) -> None:
    if {"--help", "--version"} & {*words}:
        return
    module = COMMANDS[name].module or name.removeprefix("ng_")
    try:
        import_module(f"rollout_kit.commands.{module}").main(words)
    except Understood:
        return
    raise AssertionError(f"{name} {words}: it has read no arguments")


def check_make(words: list[str], reader: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {word for word in words if "=" not in word} <= {*targets}


def check_pip(words: list[str], reader: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words:
        if match := re.fullmatch(r"(?P<what>.*?)\[(?P<extras>[\w,-]+)\].*", word):
            assert match["what"] in ("rollout-kit", "."), word
            assert {*match["extras"].split(",")} <= {*project["optional-dependencies"]}, word


def check_python(words: list[str], reader: Path) -> None:
    if words[0] == "-m":
        assert words[1] in ("venv", "pip", "zipfile") or find_spec(words[1]), words
    elif words[0] != "-c":
        place = words[0].removeprefix("CHECKOUT/")
        assert (ROOT / place).exists() or (reader / place).exists(), words


def check_npm(words: list[str], reader: Path) -> None:
    """Packages of harnesses are those that make test-harness installs."""
    assert words[:3] == ["install", "--prefix", "harnesses"], words
    assert {*words[3:]} <= {*(ROOT / "Makefile").read_text().split()}, words


OTHERS = {"make": check_make, "npm": check_npm, "pip": check_pip, "python": check_python}


@pytest.mark.parametrize("found", YAML, ids=by_place)
def test_a_yaml_block_is_valid(
    found: Found, reader: Path, stopping: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(reader))
    _set_variables(monkeypatch)
    tree = yaml.safe_load(found.text)
    if isinstance(tree, list):
        for path in chain.from_iterable(each["config_paths"] for each in tree):
            assert (reader / path).exists(), "a configuration of verl names it"
    elif "apiVersion" in tree:
        for name, *words in _in_manifest(tree, reader):
            monkeypatch.chdir(reader)
            check_ours(name, words)
    elif "rules" in tree:
        (tmp_path / "rules.yaml").write_text(found.text)
        keys = {
            "inputs": ["x"],
            "output_fpath": "x",
            "format": "trl_dpo",
            "rules_fpath": "rules.yaml",
        }
        assert read_rules(PairsConfig.model_validate(keys))
    elif "arms" in tree:
        (tmp_path / "arms.yaml").write_text(found.text)
        assert read_arms("arms.yaml", registry.resolve_path)
    elif isinstance(tree.get("source"), dict) and tree["source"].get("type") == HARBOR:
        (tmp_path / "words.yaml").write_text(found.text)
        assert read_definition("words.yaml", tmp_path).folders
    elif "like" in tree:
        (tmp_path / "own.yaml").write_text(found.text)
        definition = read_definition("own.yaml", tmp_path)
        assert definition.where or definition.examples
    elif "mapping" in tree:
        assert Mapping.model_validate(tree["mapping"])
    elif "faults" in tree:
        check_servers({"policy_model": {MODELS: {"simulated_model": tree}}}, tmp_path, reader)
    elif "scrape_configs" not in tree:
        check_servers(tree, tmp_path, reader)


def _in_manifest(tree: Any, reader: Path) -> Iterator[list[str]]:
    """The commands in a manifest of Kubernetes."""
    if isinstance(tree, dict):
        if isinstance(script := tree.get("entrypoint"), str):
            yield from run_with_stand_ins(script, reader)
        if command := tree.get("command"):
            yield command
    for inner in (
        tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    ):
        yield from _in_manifest(inner, reader)


def check_servers(tree: dict[str, Any], folder: Path, reader: Path) -> None:
    """Check a block with a model, an agent and a verifier beside it, as far as it names others."""
    is_env = "policy_base_url" in tree
    (folder / "block.yaml").write_text(yaml.safe_dump(tree))
    (folder / "env.yaml").write_text(yaml.safe_dump(tree if is_env else HOSTED))
    words = ["+policy_model_path=x"] if "${policy_model_path}" in str(tree) else []
    words += [f"+{name}=x" for name in re.findall(r"\$\{(search_\w+)\}", str(tree))]
    others = "".join(_others(tree))
    (folder / "others.yaml").write_text(others or "{}")
    files = ["others.yaml", *_list_changed(tree)] + ["block.yaml"] * (not is_env)
    files += ["responses_api_models/openai_model/configs/openai_model.yaml"] * is_env
    for kind, name in _implementations(tree):
        if registry.find(kind, name, folder) is None:
            (folder / kind / name).mkdir(parents=True)
            (folder / kind / name / "app.py").write_text(SERVER)
    config = loading.load([f"+config_paths=[{','.join(files)}]", *words], ValidateConfig, folder)
    assert config.instances and not config.warnings


def _list_changed(tree: dict[str, Any]) -> Iterator[str]:
    """The shipped files that a block changes."""
    if "judge_server" in tree:
        yield "resources_servers/equivalence_llm_judge/configs/equivalence_llm_judge.yaml"
    for name in tree.get("policy_model", {}).get(MODELS, ()):
        if name in ("openai_model", "azure_openai_model"):
            yield f"{MODELS}/{name}/configs/{name}.yaml"


def _implementations(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for block in tree.values():
        for kind in {*registry.TYPES} & {*(block if isinstance(block, dict) else ())}:
            yield from ((kind, name) for name in block[kind])


def _others(tree: dict[str, Any]) -> Iterator[str]:
    """The servers that a block names and another file has."""
    text = str(tree)
    if "rubric_judge" in tree:
        yield MODEL.format(name="policy_model")
    for kind, name in re.findall(r"'type': '(\w+)', 'name': '(\w+)'", text):
        if name not in tree:
            yield {
                MODELS: MODEL.format(name=name),
                RESOURCES: f"{name}: {{resources_servers: {{string_match: {{}}}}}}\n",
                AGENTS: ENVIRONMENT.format(name=name.removesuffix("_simple_agent"))
                + MODEL.format(name="policy_model"),
            }[kind]


@pytest.mark.parametrize("found", PYTHON, ids=by_place)
def test_a_python_block_imports_what_exists(found: Found) -> None:
    for node in ast.walk(ast.parse(found.text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rollout_kit"):
            try:
                module = import_module(str(node.module))
            except ModuleNotFoundError as error:  # a trainer, which is not installed here
                assert not str(error.name).startswith("rollout_kit"), node.module
                continue
            assert [each.name for each in node.names if not hasattr(module, each.name)] == []


def test_pages_teach_no_import_path_of_earlier_versions() -> None:
    for path in documents():
        if path.name != "CHANGELOG.md":
            named = re.findall(r"\brollout_kit(?:\.[a-z_]+)+", path.read_text())
            assert [each for each in named if home_of(each)] == [], path


def test_no_block_escapes() -> None:
    """What looks like a command or YAML stands in a fence with its language."""
    for path in documents():
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not re.findall(r"^(?: {4}|\t)\S.*", text, re.MULTILINE), path
        for block in blocks(path.read_text()):
            is_command = re.search(r"^(ng_\w+|gym|pip|make) ", block.text, re.MULTILINE)
            assert block.language or not is_command, path
