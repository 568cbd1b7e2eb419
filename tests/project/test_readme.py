"""The README and then the guides of docs/index.md, followed from top to bottom in a fresh folder.

A code block with a file name after its language is written to that file. A shell block is run,
unless the line above it gives a reason not to. What a page shows as the output of a block that is
run, in the next block, is compared with what it prints.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from claims import answers, assert_prints, assert_written
from endpoint import Endpoint, endpoint
from support import HANG_S, Block, blocks, eventually, read_jsonl
from workplace import ROOT

from rollout_kit.api.testing import text_response

pytest.importorskip("ctranslate2")

INDEX = (ROOT / "docs/index.md").read_text()
LINK = re.compile(r"\]\(([^)#:]+)\)")
RUN_ELSEWHERE = {
    "docs/python.md": "tests/collecting/test_api.py",
    "docs/writing-a-resources-server.md": "tests/project/test_writing.py",
    "responses_api_models/vllm_model/README.md": "tests/config/test_config.py",
}


def guides() -> list[str]:
    """README, then the guides that are run here, in the order of the index."""
    listed = [f"docs/{name}" for name in LINK.findall(INDEX.partition("## Reference")[0])]
    others = (name for name in listed[1:] if not name.startswith("docs/goals/"))
    return ["README.md", *(name for name in others if name not in RUN_ELSEWHERE)]


GOALS = [
    "docs/concepts.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs/goals").glob("*.md"))),
]
"""Pages that are followed in fresh folders, by test_goals.py."""

WALKED = {name: (ROOT / name).read_text() for name in [*guides(), *GOALS]}
"""Document → its text."""

BIN = Path(sys.executable).parent

HEAD_PORT = 11000


class Walk:
    """A folder in which a reader types what is shown, and the output of each block."""

    def __init__(self, folder: Path, hosted: Endpoint) -> None:
        self.folder = folder
        self.hosted = hosted
        self.said: dict[str, str] = {}
        self.printed = ""
        """What the last command printed, its errors and warnings too; empty if it was not run."""
        self.servers: subprocess.Popen[str] | None = None
        self.env = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def read(self, document: str) -> None:
        outputs = {command.text: output.text for command, output in answers(WALKED[document])}
        for block in blocks(WALKED[document]):
            self.printed = ""
            self.take(block)
            if self.printed and block.text in outputs:
                assert_prints(document, outputs[block.text], self.printed)

    def take(self, block: Block) -> None:
        if block.file:
            text = block.text.replace("https://api.openai.com/v1", self.hosted.url)
            (self.folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / block.file).write_text(text)
        elif block.language == "bash" and not block.reason:
            is_server = block.text.startswith("ng_run ")
            self.said[block.text] = self.stay(block.text) if is_server else self.run(block.text)

    def run(self, script: str) -> str:
        script = self.at_hand(script)
        done = subprocess.run(
            ["bash", "-ec", script], cwd=self.folder, env=self.env, capture_output=True, text=True
        )
        host = urlsplit(self.hosted.url).netloc
        self.printed = (done.stderr + done.stdout).replace(host, "api.openai.com")
        assert done.returncode == 0, script + self.printed
        return done.stdout

    def at_hand(self, script: str) -> str:
        """`script` with the agent's port, in case another program uses port 8000."""
        said = "".join(self.said.values())
        ports = re.findall(r"responses_api_agents/\S+\s+http://\S+:(\d+)", said)
        return script.replace("localhost:8000", f"localhost:{ports[0]}") if ports else script

    def stay(self, script: str) -> str:
        """Start a server; return its output up to the line that says it is ready."""
        self.servers = subprocess.Popen(
            ["bash", "-ec", f"exec {script}"],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            text=True,
        )
        said = ""
        assert self.servers.stdout
        for line in self.servers.stdout:
            said += line
            if "servers ready" in line:
                return said
        raise AssertionError(said)

    def after(self, part: str) -> str:
        """The output of the one block that contains `part`."""
        [said] = [said for text, said in self.said.items() if part in text]
        return said

    def rows(self, name: str) -> list[dict]:
        return read_jsonl(self.folder / f"results/{name}.jsonl")


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """Through the README. One process at a time walks: the commands use a fixed port."""
    if not (BIN / "ng_help").exists():
        pytest.skip("the commands are not installed beside this interpreter")
    if not all(map(shutil.which, ("bash", "curl", "jq"))):
        pytest.skip("bash, curl or jq is not installed")
    from rollout_kit.serving.sockets import bound_socket

    lock = tmp_path_factory.getbasetemp().parent / "walk.lock"
    answers = endpoint(lambda body: (200, text_response("B")))
    with lock.open("w") as turn, answers as hosted:
        fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            bound_socket("127.0.0.1", HEAD_PORT).close()
        except OSError:
            pytest.skip(f"port {HEAD_PORT} is in use, and the documents' commands need it")
        walk = Walk(tmp_path_factory.mktemp("walk"), hosted)
        try:
            walk.read("README.md")
            yield walk
        finally:
            if walk.servers:
                walk.servers.terminate()
                walk.servers.communicate(timeout=HANG_S)


@pytest.fixture(scope="module")
def whole_walk(walk: Walk) -> Walk:
    """On through the guides, in the same folder."""
    for name in guides()[1:]:
        walk.read(name)
    return walk


def test_a_verifier_of_one_s_own(walk: Walk) -> None:
    said = walk.after("ng_validate")
    assert "configuration is valid" in said and "Plan: 1 task × 1 repeat = 1 rollout" in said
    [first, *_] = walk.rows("exact")
    assert first["agent_ref"]["name"] == "exact_simple_agent" and "length" in first


def test_a_hosted_api(walk: Walk) -> None:
    assert [row["rollout"]["model"] for row in walk.rows("hosted")] == ["scripted"] * 5
    assert walk.hosted.saw.total() == 5


@pytest.mark.documents
def test_two_terminals(whole_walk: Walk) -> None:
    assert len(whole_walk.rows("two_terminals/rollouts")) == 96
    answer = json.loads(whole_walk.after("curl").splitlines()[-1])
    assert "response" in answer and "verify_error" in answer and "reward" not in answer, answer
    assert answer["response"]["output"]
    assert whole_walk.after("ng_status").count(" ok ") == 3
    assert "stopped the ng_run" in whole_walk.after("ng_stop")
    assert whole_walk.servers is not None
    eventually(lambda: whole_walk.servers is not None and whole_walk.servers.poll() == 0)


@pytest.mark.documents
def test_arms_are_collected_compared_and_exported(whole_walk: Walk) -> None:
    assert "Plan: 2 tasks × 3 arms × 2 repeats = 12 rollouts" in whole_walk.after("+arms=arms.yaml")
    assert "plain_0 and strict:" in whole_walk.after("ng_compare results/arms")
    assert len(whole_walk.rows("arms/kto")) == 4
    rollouts = [row["rollout"] for row in whole_walk.rows("arms/rollouts")]
    [strict, *_] = [each for each in rollouts if each["arm"]["id"] == "strict"]
    assert_written("docs/arms.md", '{"arm"', strict)


@pytest.mark.documents
def test_repeats_and_estimates_of_a_task_of_one_s_own(whole_walk: Walk) -> None:
    assert "Plan: 1 task × 4 repeats = 4 rollouts · 1 done" in whole_walk.after("+num_repeats=4 \\")
    assert "4 planned: 4 with a result" in whole_walk.after("+check_only=true")
    rows = whole_walk.rows("exact")
    assert [row["rollout"]["rollout_index"] for row in rows] == list(range(8))
    assert "Bottleneck: " in whole_walk.after("+throughput_log")
    assert len((whole_walk.folder / "results/throughput.csv").read_text().splitlines()) == 2


@pytest.mark.documents
def test_verdicts_later(whole_walk: Walk) -> None:
    unverified, verified = whole_walk.rows("later/unverified"), whole_walk.rows("later/verified")
    said = whole_walk.after("ng_reverify")
    assert f"First verdicts: {len(unverified)}" in said and len(verified) == len(unverified) > 0
    assert not any("reward" in line for line in unverified)
    assert all("reward" in line for line in verified)


@pytest.mark.documents
def test_the_recipe_over_the_output(whole_walk: Walk) -> None:
    assert re.fullmatch(r"Avg tokens/sample: [\d.]+\n", whole_walk.after("jq '.usage"))


def test_every_command_is_run_or_says_why_not() -> None:
    for path in documents():
        name = str(path.relative_to(ROOT))
        commands = [block for block in blocks(path.read_text()) if block.language == "bash"]
        if name not in {*WALKED, *RUN_ELSEWHERE} and not name.startswith("resources_servers/"):
            assert all(block.reason for block in commands), f"{name}: neither run nor excused"


def documents() -> list[Path]:
    servers = (
        path for kind in ("resources_servers", "responses_api_*") for path in ROOT.glob(f"{kind}/*")
    )
    return sorted(
        path
        for folder in (ROOT, ROOT / "docs", ROOT / "docs/goals", *servers)
        for path in folder.glob("*.md")
    )


def test_the_index_lists_every_document() -> None:
    listed = set(LINK.findall(INDEX))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"} <= listed
    assert {path.removeprefix("docs/") for path in GOALS} <= listed


def test_every_command_that_a_document_names_exists() -> None:
    from rollout_kit.config.commands import COMMANDS

    for path in documents():
        named = set(re.findall(r"\bng_\w+", path.read_text()))
        assert named <= set(COMMANDS), (path, named - set(COMMANDS))


def test_every_link_leads_to_a_file() -> None:
    for path in documents():
        for target in LINK.findall(path.read_text()):
            assert (path.parent / target).exists(), f"{path}: {target}"


def test_every_file_that_a_guide_names_exists() -> None:
    elsewhere = (
        "results/",
        "environments/langgraph",
        "data/",
        "src/",
        "resources_servers/exact",
        "resources_servers/arc_agi",
        "benchmarks/gpqa",
        "resources_servers/math_advanced",
        "responses_api_agents/remote_agent",
        "responses_api_agents/verifiers_agent",
        "tau2/",
        "environments/nemo_user_sim",
        "resources_servers/my_env",
        "resources_servers/cafe",
        "resources_servers/shop",
        "resources_servers/sums",
        "a/work/",
        "b/work/",
    )
    for document in WALKED.values():
        for path in re.findall(r"(?<![\w/.])[a-z_]\w*/[\w/]+\.(?:yaml|jsonl|py)\b", document):
            assert (ROOT / path).exists() or path.startswith(elsewhere), path


def test_the_readme_stays_short() -> None:
    assert len(WALKED["README.md"].splitlines()) <= 150
