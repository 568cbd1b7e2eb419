"""TRL's GRPOTrainer trains on an environment of ours through OpenEnv's client. `make trainers`
installs both, and `make test-trainers` runs this."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grpo import MODEL, configure, load_tiny
from running import ng_run
from support import HANG_S

STEPS, PROMPTS, MEMBERS = 3, 2, 4

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]

SERVERS = """
policy_model:
  responses_api_models:
    simulated_model: {}
calculator:
  resources_servers:
    calculator: {openenv_tasks: %s}
"""


@pytest.fixture
def url(tmp_path: Path) -> Any:
    """The calculator under OpenEnv's protocol."""
    pytest.importorskip("openenv")
    (tmp_path / "run.yaml").write_text(SERVERS % (MODEL / "data/tool.jsonl"), "utf-8")
    with ng_run(tmp_path, "+openenv=true", config=str(tmp_path / "run.yaml")) as head:
        status = [Path(sys.executable).with_name("ng_status"), f"+head_server.port={head[-5:]}"]
        told = subprocess.run(
            [*status, "+json=true"], capture_output=True, text=True, timeout=HANG_S
        )
        [found] = [
            each["url"]
            for each in json.loads(told.stdout)["servers"]
            if each["name"] == "calculator"
        ]
        yield f"{found}/openenv"


def test_grpo_trains_on_an_environment_of_ours(tmp_path: Path, url: str) -> None:
    from datasets import Dataset
    from openenv.core import GenericEnvClient
    from trl import GRPOTrainer

    rewards: list[float] = []
    called: list[str] = []

    class Sums:
        """An episode of OpenEnv with one tool."""

        def __init__(self) -> None:
            self._client = GenericEnvClient(base_url=url).sync()
            self._client.connect()

        def reset(self, **row: Any) -> None:
            self._client.reset(task_index=row["index"])

        def add(self, a: int, b: int) -> str:
            """Add two integers.

            Args:
                a: The first.
                b: The second.
            """
            action = {"tool_name": "add", "arguments": {"a": a, "b": b}}
            called.append(str(self._client.step(action).observation["result"]))
            return called[-1]

    def verdict(completions: list[Any], environments: list[Any], **_: Any) -> list[float]:
        found = []
        for messages, env in zip(completions, environments, strict=True):
            text = str(messages[-1].get("content") or "")
            answer = {"tool_name": "respond", "arguments": {"text": text}}
            found.append(float(env._client.step(answer).reward or 0.0))
        rewards.extend(found)
        return found

    rows = [json.loads(line) for line in (MODEL / "data/tool.jsonl").open()][:16]
    prompts = [row["responses_create_params"]["input"] for row in rows]
    trainer = GRPOTrainer(
        **load_tiny(),
        reward_funcs=[verdict],
        args=configure(tmp_path, STEPS, PROMPTS, MEMBERS, max_completion_length=96),
        train_dataset=Dataset.from_list(
            [{"prompt": prompt, "index": number} for number, prompt in enumerate(prompts)]
        ),
        environment_factory=Sums,
    )
    trainer.train()
    told = [each["reward"] for each in trainer.state.log_history if "reward" in each]
    assert len(rewards) == STEPS * PROMPTS * MEMBERS
    size = PROMPTS * MEMBERS
    means = [sum(rewards[at : at + size]) / size for at in range(0, len(rewards), size)]
    assert told == pytest.approx(means, abs=1e-6)
    assert called and max(rewards) == 1.0
