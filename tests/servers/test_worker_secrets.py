"""Workers match and parse the texts of models and rows: they hold no key of this process."""

import asyncio
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from held import find_held
from support import read_process

from rollout_kit.errors import ConfigError
from rollout_kit.responses import make_response, message_item
from rollout_kit.serving.process_tree import family
from rollout_kit.serving.registry import load
from rollout_kit.serving.workers.environment import clean_environment
from rollout_kit.serving.workers.matching import LineMatcher
from rollout_kit.serving.workers.pool import WorkerPool
from rollout_kit.session import Session, entered

if sys.platform != "linux":
    pytest.skip("needs /proc", allow_module_level=True)

ASKED = {"responses_create_params": {"input": "Which?"}}
PATTERN = {"template_metadata": {"output_regex": r"is (\w+)"}}

VERIFIERS: dict[str, tuple[dict[str, Any], str]] = {
    "mcqa": ({"options": [{"C": "x"}], "expected_answer": "C", **PATTERN}, "it is C"),
    "string_match": ({"expected_answer": "[a-c]+", "match_mode": "regex"}, "Final answer: abc"),
    "structured_outputs": ({"schema_str": '{"type": "object"}'}, "{}"),
    "instruction_following": (
        {
            "instruction_id_list": ["keywords:existence", "language:response_language"],
            "kwargs": [{"keywords": ["tea"]}, {"language": "en"}],
        },
        "We drink tea in the afternoon, and it is good.",
    ),
    "math_with_verify": ({"expected_answer": "x^2-1"}, r"\boxed{(x-1)(x+1)}"),
    "equivalence_llm_judge": ({"expected_answer": "Bern", **PATTERN}, "it is Bern"),
}
"""Verifiers with workers: a row whose verdict needs one, and the right answer."""

WORK = """
import os

def work(name):
    if name == "files":
        return [each for number in range(100) if (each := read_link(number))]
    return os.environ.get(name)

def read_link(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return None
"""


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Values of two variables of this process that hold keys."""
    names = ["OPENAI_API_KEY", f"PLANTED_{secrets.token_hex(4).upper()}"]
    values = [f"sk-{secrets.token_hex(16)}" for _ in names]
    for name, value in zip(names, values, strict=True):
        monkeypatch.setenv(name, value)
    return values


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "work.py"
    path.write_text(WORK)
    return path


def find_workers(script: str) -> list[int]:
    """Descendants of this process that run a script."""
    return [pid for pid in family(os.getpid()) if script in read_process(pid, "cmdline")]


@pytest.mark.parametrize("name", VERIFIERS)
def test_the_workers_of_a_verifier_hold_no_key(name: str, planted: list[str]) -> None:
    task, answer = VERIFIERS[name]
    cls = load("resources_servers", name)

    async def run() -> tuple[float, list[list[tuple[str, str]]]]:
        server = cls(cls.Config(), None, name)
        try:
            server.check_needs()
        except ConfigError as error:
            pytest.skip(str(error))
        try:
            await server.start()
            with entered(Session()):
                response = make_response("m", [message_item(answer)], None)
                await server.handle("/seed_session", orjson.dumps({**ASKED, **task}))
                raw = orjson.dumps({**ASKED, **task, "response": response})
                verdict = await server.handle("/verify", raw)
                return verdict.reward, [find_held(pid, planted) for pid in find_workers("child.py")]
        finally:
            await server.stop()

    reward, held = asyncio.run(run())
    assert reward == 1.0
    assert held and not any(held), held


def test_the_process_that_finds_lines_holds_no_key(planted: list[str], tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("a line\n")
    matcher = LineMatcher("line")
    try:
        list(matcher.find(path, [(0, 6, 0)]))
        [pid] = find_workers("matching_child.py")
        assert find_held(pid, planted) == []
        assert "NoNewPrivs:\t1" in read_process(pid, "status")
    finally:
        matcher.close()


def in_pool(file: Path, ask: Callable[[WorkerPool], Any], **options: Any) -> Any:
    async def run() -> Any:
        async with WorkerPool(file, "work", **options) as pool:
            return await ask(pool)

    return asyncio.run(run())


def test_a_pool_gives_its_workers_the_variables_that_it_names(
    file: Path, planted: list[str]
) -> None:
    async def ask(pool: WorkerPool) -> Any:
        return [await pool.call(name) for name in ("OPENAI_API_KEY", "MY_FOLDER", "PATH")]

    path = os.environ["PATH"]
    assert in_pool(file, ask) == [None, None, path]
    assert in_pool(file, ask, environment={"MY_FOLDER": "/x"}) == [None, "/x", path]
    assert in_pool(file, ask, environment=os.environ) == [planted[0], None, path]


def test_a_confined_worker_gains_no_privileges(file: Path) -> None:
    others = find_workers("child.py")

    async def ask(pool: WorkerPool) -> str:
        [pid] = {*find_workers("child.py")} - {*others}
        return next(x for x in read_process(pid, "status").splitlines() if "NoNewPrivs" in x)

    assert in_pool(file, ask) == "NoNewPrivs:\t1"
    own = next(x for x in read_process("self", "status").splitlines() if "NoNewPrivs" in x)
    assert in_pool(file, ask, is_confined=False) == own


def test_a_worker_inherits_no_descriptor(file: Path, tmp_path: Path) -> None:
    with open(tmp_path / "of the parent", "w") as stream:
        os.set_inheritable(stream.fileno(), True)
        found = in_pool(file, lambda pool: pool.call("files"))
    assert str(tmp_path / "of the parent") not in found
    assert len([each for each in found if each.startswith("socket:")]) == 1, found


def test_names_of_keys_are_in_no_clean_environment() -> None:
    keys = [
        *("OPENAI_API_KEY", "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "LC_API_KEY"),
        *("PYTHONANYWHERE_API_TOKEN", "PYTHON_KEYRING_PASSWORD", "HTTPS_PROXY", "PIP_INDEX_URL"),
        *("XDG_TOKEN", "MY_NUM_THREADS_KEY", "path_key"),
    ]
    needed = ["PATH", "LC_ALL", "PYTHONPATH", "OMP_NUM_THREADS", "NLTK_DATA", "XDG_RUNTIME_DIR"]
    assert list(clean_environment(dict.fromkeys([*keys, *needed], "1"))) == needed
    assert clean_environment()["PATH"] == os.environ["PATH"]
