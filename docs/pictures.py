"""Takes the pictures of the documents, from new runs of the demo and of the rehearsal.

make pictures   # needs Chromium and node, as make test-view does
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "results/pictures"
IMAGES = ROOT / "docs/images"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
TASKS = "responses_api_models/local_model/data/demo.jsonl"
TEMPERATURES = {"cool": 0.3, "warm": 1.0}
"""File of rollouts → the temperature of the tiny model."""


def run(name: str, *words: str) -> None:
    command = [str(Path(sys.executable).with_name(name)), *words]
    subprocess.run(command, cwd=ROOT, check=True)


@contextmanager
def serve(name: str, *words: str, said: str = "") -> Iterator[str]:
    """A command that serves a page; the address that it prints in a line with these words."""
    command = [str(Path(sys.executable).with_name(name)), *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = (line for line in process.stdout if "http://" in line and said in line)
        try:
            yield next(word for word in next(lines).split() if word.startswith("http://"))
        finally:
            process.terminate()


def take(script: str, *words: str) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"no browser: install one of {', '.join(BROWSERS)}")
    command = ["node", f"tests/browser/{script}", ".browser", browser, *words, str(IMAGES)]
    subprocess.run(command, cwd=ROOT, check=True)


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, temperature in TEMPERATURES.items():
        run(
            "ng_collect_rollouts",
            *("+config_paths=[configs/demo.yaml]", f"+input_jsonl_fpath={TASKS}"),
            *(f"+output_jsonl_fpath={FOLDER}/{name}.jsonl", "+num_repeats=4"),
            f"+responses_create_params.temperature={temperature}",
        )
    report = str(FOLDER / "report.html")
    files = [f"{FOLDER}/{name}.jsonl" for name in TEMPERATURES]
    run("ng_report", *files, f"+output_fpath={report}", "+title=Two temperatures")
    with serve("ng_view", *files, "+port=0") as url:
        take("pictures.mjs", url.rstrip("/"), report)
    with serve(
        "ng_collect_rollouts",
        *("+config_paths=[configs/rehearsal.yaml]", "+dataset=example", "+num_repeats=20000"),
        *(f"+output_jsonl_fpath={FOLDER}/mcqa.jsonl", "+num_samples_in_parallel=4-24-48"),
        "+dashboard=true",
        said="Live page",
    ) as url:
        take("live.mjs", url)


if __name__ == "__main__":
    main()
