"""The compared collectors, how to install each, and the command that does the work.

All send the same multiple-choice questions to the same endpoint, compare the boxed letter with the
row's, and store results in their own way. Versions are pinned. Settings are defaults, except known
obstacles: logs, displays, and a process per rollout.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .. import sides

TASKS = Path(__file__).resolve().parent / "tasks"


@dataclass(frozen=True, slots=True)
class Job:
    """Work for a command."""

    port: int
    rows: Path
    number: int
    parallel: int
    out: Path
    """A folder that does not exist yet."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    requirement: str
    """Requirements for pip; empty for tools in our own environment."""
    command: Callable[[Job, Path], list[str]]
    """Builds the command from a job and the folder of the environment's programs."""

    def install(self, cache: Path) -> Path:
        """Install the tool once and return the folder of its programs, or CalledProcessError."""
        home = cache / self.requirement.replace("==", "-")
        done = home / ".ready"
        if self.requirement and not done.exists():
            print(f"installing {self.requirement} into {home} (once)", flush=True)
            subprocess.run([sys.executable, "-m", "venv", home], check=True)
            pip = [home / "bin/python", "-m", "pip", "install", "--disable-pip-version-check"]
            wanted = [self.requirement, "openai", "aiohttp"]
            with (home / "pip.log").open("w") as log:
                subprocess.run([*pip, *wanted], stdout=log, stderr=log, check=True)
            done.touch()
        return home / "bin"

    def environment(self, job: Job) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(TASKS if self.requirement else TASKS.parents[2]),
            "BENCH_ROWS": str(job.rows),
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": job.url,
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(job.out.parent / "hf"),
        }


def _bare(job: Job, _: Path) -> list[str]:
    argv = sides.bare(job.port, job.rows, job.parallel)
    return [word.replace("{report}", os.devnull) for word in argv]


def _ours(job: Job, _: Path) -> list[str]:
    code = "from rollout_kit.commands import main; main('ng_collect_rollouts')"
    output = str(job.out / "rollouts.jsonl")
    keys = sides.collector_keys(job.rows, job.parallel, output)
    return [sys.executable, "-c", code, *keys, *sides.server_keys(job.port, "short")]


def _inspect(job: Job, programs: Path) -> list[str]:
    return [
        *(
            str(programs / "inspect"),
            "eval",
            "tasks/mcq_inspect.py",
        ),  # no absolute path: it says no
        *("--model", "openai/fake", "--log-dir", str(job.out), "--limit", str(job.number)),
        *("--max-connections", str(job.parallel), "--max-samples", str(job.parallel)),
        *("--no-log-realtime", "--display", "none"),
    ]


def _verifiers_01(job: Job, programs: Path) -> list[str]:
    return [
        *(str(programs / "vf-eval"), "mcq_classic", "-m", "fake", "-b", job.url),
        *("-k", "OPENAI_API_KEY", "-n", str(job.number), "-r", "1", "-c", str(job.parallel)),
        *("-s", "-d", "-A", "-o", str(job.out)),
    ]


def _verifiers_04(job: Job, programs: Path) -> list[str]:
    return [
        *(str(programs / "vf-eval"), "mcq-bench", "-m", "fake", "--client.base-url", job.url),
        *("--client.api-key-var", "OPENAI_API_KEY", "--select.limit", str(job.number)),
        *("-c", str(job.parallel), "--no-push", "--no-rich"),
        *("-o", str(job.out), "--run.name", "bench"),
        *("--env.agent.harness.id", "mcq-bench", "--env.agent.runtime.type", "subprocess"),
    ]


def _lm_eval(job: Job, programs: Path) -> list[str]:
    model = f"model=fake,base_url={job.url}/chat/completions,num_concurrent={job.parallel}"
    return [
        *(str(programs / "lm_eval"), "--model", "local-chat-completions"),
        *("--model_args", f"{model},max_retries=3,tokenized_requests=False"),
        *("--include_path", "tasks", "--tasks", "mcq_local", "--apply_chat_template"),
        *("--limit", str(job.number), "--output_path", str(job.out), "--log_samples"),
    ]


TOOLS = [
    Tool("bare loop", "", _bare),
    Tool("rollout_kit", "", _ours),
    Tool("lm-eval 0.4.13", "lm-eval[api]==0.4.13", _lm_eval),
    Tool("inspect 0.3.285", "inspect-ai==0.3.285", _inspect),
    Tool("verifiers 0.1.14", "verifiers==0.1.14", _verifiers_01),
    Tool("verifiers 0.4.0, harness in process", "verifiers==0.4.0", _verifiers_04),
]
FAST = ("bare loop", "rollout_kit", "lm-eval 0.4.13")
"""Tools that need more rows to measure their speed."""
