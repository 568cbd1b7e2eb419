"""TRL's GRPOTrainer trains on rollouts of this toolkit: `make trainers` installs it, and
`make test-trainers` runs this."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import HANG_S

from rollout_kit.rl import CheckpointManager
from rollout_kit.rl.adapters.trl import TrlRollouts, rollout_reward

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "responses_api_models/local_model"
STEPS, PROMPTS, MEMBERS = 10, 4, 4

pytestmark = pytest.mark.trainers


@pytest.fixture
def url(tmp_path: Path) -> Any:
    """The head server of an ng_run whose model follows the steps in `weights`."""
    sync = "++policy_model.responses_api_models.local_model.weight_sync"
    command = [
        str(Path(sys.executable).with_name("ng_run")),
        "+config_paths=[configs/demo.yaml]",
        "+head_server.port=0",
        f"+log_dir={tmp_path / 'logs'}",
        f"{sync}.path={tmp_path / 'weights'}",
        f"{sync}.poll_s=0.05",
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready = next(line for line in process.stdout if "Head server: " in line)
            yield ready.partition("Head server: ")[2].partition(" ")[0].rstrip(".")
        finally:
            process.terminate()
            process.wait(HANG_S)


@pytest.mark.filterwarnings("ignore")
def test_grpo_trains_on_rollouts_of_its_own_weights(tmp_path: Path, url: str) -> None:
    import torch
    from transformers import AutoTokenizer, Qwen3ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    rows = [json.loads(line) for line in (MODEL / "data/arithmetic.jsonl").open()][:32]
    manager = CheckpointManager(tmp_path / "weights", base=MODEL / "checkpoint")
    out, seen = tmp_path / "rollouts.jsonl", []

    class Watched(TrlRollouts):
        def _collect(self, *arguments: Any) -> Any:
            found = super()._collect(*arguments)
            seen.append([each for some in found.values() for each in some])
            return found

    rollouts = Watched(url, rows, manager, num_samples_in_parallel=8)
    torch.set_num_threads(1)
    args = GRPOConfig(
        output_dir=str(out.parent / "trl"),
        use_cpu=True,
        bf16=False,
        max_steps=STEPS,
        per_device_train_batch_size=PROMPTS * MEMBERS,
        num_generations=MEMBERS,
        max_completion_length=64,
        temperature=1.0,
        beta=0.0,
        learning_rate=1e-5,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=Qwen3ForCausalLM.from_pretrained(MODEL / "checkpoint", dtype=torch.float32),
        reward_funcs=[rollout_reward],
        args=args,
        train_dataset=rollouts.dataset(),
        processing_class=AutoTokenizer.from_pretrained(MODEL / "checkpoint"),
        rollout_func=rollouts,
    )
    trainer.train()
    told = [each["reward"] for each in trainer.state.log_history if "reward" in each]
    assert len(told) == len(seen) == STEPS
    for number, batch in enumerate(seen, 1):
        assert len(batch) == PROMPTS * MEMBERS
        assert {each.versions for each in batch} == {(number, number)}
    means = [sum(each.reward for each in batch) / len(batch) for batch in seen]
    assert told == pytest.approx(means, abs=1e-6)
