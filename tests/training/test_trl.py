"""TRL's GRPOTrainer and AsyncGRPOTrainer train on rollouts of this toolkit. `make
trainers` installs TRL, and `make test-trainers` runs this."""

import json
import socket
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpo import configure, load_tiny
from running import ng_run
from support import HANG_S

from rollout_kit import load
from rollout_kit.rl import CheckpointManager, read_group
from rollout_kit.rl.adapters.trl import TrlRollouts, rollout_reward
from rollout_kit.rl.rows import group_name

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "responses_api_models/local_model"
STEPS, PROMPTS, MEMBERS = 10, 4, 4

pytestmark = pytest.mark.trainers


@pytest.fixture
def url(tmp_path: Path) -> Any:
    """The head server of an ng_run whose model follows the steps in `weights`."""
    sync = "++policy_model.responses_api_models.local_model.weight_sync"
    with ng_run(tmp_path, f"{sync}.path={tmp_path / 'weights'}", f"{sync}.poll_s=0.05") as found:
        yield found


@pytest.mark.filterwarnings("ignore")
def test_grpo_trains_on_rollouts_of_its_own_weights(tmp_path: Path, url: str) -> None:
    from trl import GRPOTrainer

    rows = [json.loads(line) for line in (MODEL / "data/arithmetic.jsonl").open()][:32]
    manager = CheckpointManager(tmp_path / "weights", base=MODEL / "checkpoint")
    out, seen = tmp_path / "rollouts.jsonl", []

    class Watched(TrlRollouts):
        def _collect(self, *arguments: Any) -> Any:
            found = super()._collect(*arguments)
            seen.append([each for some in found.values() for each in some])
            return found

    rollouts = Watched(url, rows, manager, num_samples_in_parallel=8)
    trainer = GRPOTrainer(
        **load_tiny(),
        reward_funcs=[rollout_reward],
        args=configure(out.parent, STEPS, PROMPTS, MEMBERS, max_completion_length=64),
        train_dataset=rollouts.dataset(),
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


@contextmanager
def collecting(folder: Path) -> Any:
    """A collection for ever into a buffer; its model follows the steps in `weights`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sync = "++policy_model.responses_api_models.local_model.weight_sync"
    command = [
        str(Path(sys.executable).with_name("ng_collect_rollouts")),
        "+config_paths=[configs/demo.yaml]",
        "++policy_model.responses_api_models.local_model.return_token_ids=true",
        f"{sync}.path={folder / 'weights'}",
        f"{sync}.poll_s=0.05",
        f"+input_jsonl_fpath={MODEL / 'data/arithmetic.jsonl'}",
        f"+output_jsonl_fpath={folder / 'rollouts.jsonl'}",
        f"+num_repeats={MEMBERS}",
        "+epochs=null",
        f"+buffer=memory:?batch={PROMPTS}&staleness=2",
        f"+buffer_port={port}",
    ]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            while process.poll() is None:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield process, f"http://127.0.0.1:{port}"
            process.wait(HANG_S)  # the trainer has ended it
        finally:
            process.kill()


def varlen_attention(
    query: Any, key: Any, value: Any, starts: Any, key_starts: Any, *given: Any, **named: Any
) -> Any:
    """What TRL's kernel computes, which needs a GPU, in plain torch."""
    import torch

    out = torch.empty_like(query)
    for at in range(len(starts) - 1):
        ours = slice(int(starts[at]), int(starts[at + 1]))
        theirs = slice(int(key_starts[at]), int(key_starts[at + 1]))
        num, all_num = ours.stop - ours.start, theirs.stop - theirs.start
        mask = torch.ones(num, all_num, dtype=torch.bool).tril(all_num - num)
        parts = (query[ours], key[theirs], value[theirs])
        heads = [each.transpose(0, 1)[None] for each in parts]
        shared = torch.nn.functional.scaled_dot_product_attention(
            *heads, attn_mask=mask, scale=named["softmax_scale"], enable_gqa=True
        )
        out[ours] = shared[0].transpose(0, 1)
    return out


@pytest.mark.filterwarnings("ignore")
def test_async_grpo_trains_on_rollouts_that_follow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental import async_grpo
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    from rollout_kit.rl.adapters.trl_async import TrlAsyncRollouts

    kernel = SimpleNamespace(flash_attn_varlen_func=varlen_attention)
    monkeypatch.setattr(packing, "_flash_attn", lambda: kernel)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *given: None)
    torch.set_num_threads(1)
    manager = CheckpointManager(tmp_path / "weights", base=MODEL / "checkpoint")
    read: list[Any] = []

    class Watched(TrlAsyncRollouts):
        def _put(self, buffered: Any) -> None:
            read.append(buffered)
            super()._put(buffered)

    args = async_grpo.AsyncGRPOConfig(
        output_dir=str(tmp_path / "trl"),
        use_cpu=True,
        bf16=False,
        dtype="float32",
        max_steps=STEPS,
        per_device_train_batch_size=PROMPTS * MEMBERS,
        gradient_accumulation_steps=1,
        num_generations=MEMBERS,
        max_completion_length=64,
        max_staleness=4,
        weight_sync_steps=1,
        token_budget=0,
        learning_rate=1e-5,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    with collecting(tmp_path) as (process, url):
        rollouts = Watched(url, manager)
        trainer = async_grpo.AsyncGRPOTrainer(
            model=str(MODEL / "checkpoint"),
            reward_funcs=[rollout_reward],
            args=args,
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "?"}]}]),
            processing_class=AutoTokenizer.from_pretrained(MODEL / "checkpoint"),
            rollout_worker=rollouts,
            weight_transfer=rollouts,
        )
        trainer.train()
    assert process.returncode == 0
    told = [each for each in trainer.state.log_history if "reward" in each]
    assert len(told) == STEPS
    assert not any("sample/dropped_stale_total" in each for each in told)
    # TRL reads one batch ahead, and logs the reward of what it has read during a step
    taken = [read[start : start + PROMPTS] for start in range(0, (STEPS + 1) * PROMPTS, PROMPTS)]
    rewards = [[reward for group in step for reward in group.rewards] for step in taken]
    means = [sum(each) / len(each) for each in rewards]
    column = [(means[0] + means[1]) / 2, *means[2:]]
    assert [each["reward"] for each in told] == pytest.approx(column, abs=1e-6)
    stored: Any = defaultdict(list)
    for each in load(tmp_path / "rollouts.jsonl"):
        stored[group_name(each)].append(each.reward)
    for group in read:
        assert sorted(group.rewards) == sorted(stored[read_group(group.rollouts).group_id])
    lags = [step + 1 - group.version_first for step, each in enumerate(taken) for group in each]
    assert 0 <= min(lags) <= max(lags) <= args.max_staleness
    assert manager.latest().version == STEPS + 1
    # TRL's log-probs of the tokens are those that were sampled
    assert [each["ratio"] for each in told] == pytest.approx([1.0] * STEPS, abs=0.05)
