"""ng_view in a real browser: `make test-view` installs one and runs this."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from exported import line, tool_line, write_scored

ROOT = Path(__file__).resolve().parents[2]

MODULES = ROOT / ".browser"

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

HOSTILE = """<script>globalThis.pwned = 1</script><img src=x onerror="globalThis.pwned = 2">
[click](javascript:alert('pwned')) <a href="javascript:alert('pwned')">here</a>
</script>{{constructor}}"""

pytestmark = pytest.mark.browser


@pytest.fixture
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found or not (MODULES / "node_modules").exists() or not shutil.which("node"):
        pytest.skip("no Chromium or no playwright-core: make test-view installs them")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of rollouts, one of them with hostile answers."""
    before = [
        *(line(1, index, "It is two.", 0.0) for index in range(2)),
        line(1, 2, "It is one.", 1.0),
        line(2, 0, "It is two.", 0.0),
        *(line(task, 0, f"It is {task}.", 0.0, notes="a long field " * 900) for task in (3, 4)),
        tool_line(5, 0, 1.0, ("stock", '{"shelf": 3}')),
        line(6, 0, HOSTILE, 0.0),
        line(7, 0, "20 MB of this: " + "<b>long</b> " * 1_800_000, 0.0),
    ]
    after = [line(task, 0, "It is right.", 1.0) for task in range(1, 6)]
    write_scored(tmp_path / "before.jsonl", before, lambda each: each["reward"])
    write_scored(tmp_path / "after.jsonl", after, lambda each: 0.5)
    return tmp_path


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    command = [Path(sys.executable).with_name("ng_view"), folder, "+port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewer:
        assert viewer.stdout
        yield next(word for word in viewer.stdout.readline().split() if "http" in word).rstrip("/")
        viewer.terminate()


SIMULATED = """
config_paths: [configs/rehearsal.yaml]
rehearsal_port: {port}
policy_model:
  responses_api_models:
    openai_model: {{prices: {{input: 2.5, output: 10}}}}
"""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[str]:
    """The page of a collection that runs until it is stopped."""
    config = tmp_path / "simulated.yaml"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config.write_text(SIMULATED.format(port=free.getsockname()[1]))
    command = [
        Path(sys.executable).with_name("ng_collect_rollouts"),
        f"+config_paths=[{config}]",
        *("+dataset=example", "+num_repeats=20000", "+num_samples_in_parallel=4-24-48"),
        *(f"+output_jsonl_fpath={tmp_path}/rollouts.jsonl", "+dashboard=true"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stdout
        lines = (line for line in running.stdout if line.startswith("Live page: "))
        yield next(lines).split()[-1]
        running.stdout.close()
        running.kill()


def test_a_running_collection_is_watched_and_steered(browser: str, live: str) -> None:
    script = ROOT / "tests/browser/live.mjs"
    done = subprocess.run(["node", script, MODULES, browser, live], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok: ") == 8


def test_a_reader_finds_reads_compares_and_labels(browser: str, folder: Path, url: str) -> None:
    report = folder / "report.html"
    written = [Path(sys.executable).with_name("ng_view"), folder / "before.jsonl"]
    subprocess.run([*written, f"+static={report}", "+where=task_index < 6"], check=True)
    script = ROOT / "tests/browser/viewer.mjs"
    done = subprocess.run(
        ["node", script, MODULES, browser, url, folder, report], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok: ") == 20
