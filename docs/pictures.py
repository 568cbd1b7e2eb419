"""Takes the pictures of the documents, from new runs of agents.

make pictures   # needs Chromium and node, as make test-view does
"""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from annotated import annotate
from chore_runs import collect_chores
from coding_run import ROW as REPAIR
from coding_run import SHELL, collect_repairs, serve_coder
from recording import record

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "results/pictures"
"""Where the commands run, so that the pictures show no other path."""

IMAGES = ROOT / "docs/images"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ENDPOINT = """
policy_model:
  responses_api_models:
    openai_model:
      {{openai_base_url: "{url}", openai_api_key: k, openai_model: coder, upstream_api: responses,
        prices: {{input: 2.5, output: 10}}}}
"""
MODELS = {"small.jsonl": 0.6, "large.jsonl": 0.85}
"""File of rollouts → the share of the chores that its model does right."""


STRING_MATCH = "resources_servers/string_match/configs/string_match.yaml"
ROW = {
    "responses_create_params": {"input": "What is 6 * 7?"},
    "expected_answer": "42",
    "extraction_mode": "full_response",
}
ANSWERING = 'policy_model: {responses_api_models: {simulated_model: {answer: text, text: "42"}}}'


def run(name: str, *words: str, cwd: Path = FOLDER) -> None:
    command = [str(Path(sys.executable).with_name(name)), *words]
    subprocess.run(command, cwd=cwd, check=True)


@contextmanager
def serve(name: str, *words: str, said: str = "") -> Iterator[str]:
    """A command that serves a page; the address that it prints in a line with these words."""
    command = [str(Path(sys.executable).with_name(name)), *words]
    with subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = (line for line in process.stdout if "http://" in line and said in line)
        try:
            yield next(word for word in next(lines).split() if word.startswith("http://"))
        finally:
            process.stdout.close()
            process.kill()


def take(script: str, *words: str) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"no browser: install one of {', '.join(BROWSERS)}")
    command = ["node", f"tests/browser/{script}", ".browser", browser, *words, str(IMAGES)]
    subprocess.run(command, cwd=ROOT, check=True)


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    take_chores()
    take_repairs()
    take_live()
    draw_line(FOLDER, IMAGES / "line.svg")
    (FOLDER / "recorded").mkdir()
    record(FOLDER / "recorded", IMAGES / "demo.svg")


def take_chores() -> None:
    """The pictures of two runs: all rollouts, what differs, plots, the report."""
    for seed, (name, skill) in enumerate(MODELS.items()):
        asyncio.run(collect_chores(FOLDER / name, skill, seed))
    run("ng_report", *MODELS, "+output_fpath=report.html", "+title=Two models")
    with serve("ng_view", *MODELS, "+port=0") as url:
        take("pictures.mjs", url.rstrip("/"), str(FOLDER / "report.html"))


def take_repairs() -> None:
    """The pictures of an agent at work."""
    asyncio.run(collect_repairs(FOLDER / "repair.jsonl"))
    with serve("ng_view", "repair.jsonl", "+port=0") as url:
        take("coding.mjs", url.rstrip("/"))


def take_live() -> None:
    """The pictures of a run of that agent."""
    (FOLDER / "repairs.jsonl").write_text(json.dumps(REPAIR) + "\n")
    with serve_coder(per_token_s=0.02) as address:
        (FOLDER / "coder.yaml").write_text(ENDPOINT.format(url=address))
        with serve(
            "ng_collect_rollouts",
            *(f"+config_paths=[{SHELL},coder.yaml]", "+input_jsonl_fpath=repairs.jsonl"),
            *("+output_jsonl_fpath=repaired.jsonl", "+num_repeats=48"),
            *("+num_samples_in_parallel=5", "+dashboard=true"),
            said="Live page",
        ) as url:
            take("live.mjs", url)


def draw_line(folder: Path, target: Path) -> None:
    """A line of an output, from a run of one task."""
    (folder / "sum.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "model.yaml").write_text(ANSWERING)
    run(
        "ng_collect_rollouts",
        f"+config_paths=[{STRING_MATCH},model.yaml]",
        *("+input_jsonl_fpath=sum.jsonl", "+output_jsonl_fpath=sums.jsonl"),
        cwd=folder,
    )
    annotate(folder / "sums.jsonl", target)


if __name__ == "__main__":
    main()
