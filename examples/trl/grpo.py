"""Train the tiny model with TRL's GRPOTrainer, on sums and on tasks with a tool.

python examples/trl/grpo.py [--folder results/trl] [--steps 30]
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "grpo"))

import mix_tasks
import torch
from datasets import disable_progress_bars
from transformers import AutoTokenizer, PrinterCallback, Qwen3ForCausalLM, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from rollout_kit.rl import CheckpointManager
from rollout_kit.rl.adapters.trl import TrlRollouts, rollout_reward

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "responses_api_models/local_model/checkpoint"

SKILLS = ("arithmetic", "tool")


class Shown(TrainerCallback):
    """Prints a line for each step."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        if logs and "reward" in logs:
            reward, loss = float(logs["reward"]), float(logs["loss"])
            print(f"step {state.global_step:3}  reward {reward:.3f}  loss {loss:+.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("results/trl"))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--prompts", type=int, default=32, help="tasks of a step")
    parser.add_argument("--members", type=int, default=8, help="rollouts of a task")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(2)
    disable_progress_bar()
    disable_progress_bars()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    manager = CheckpointManager(folder / "weights", base=BASE)
    with serve(folder) as url:
        rollouts = TrlRollouts(url, draw_rows(args), manager, num_samples_in_parallel=16)
        trainer = make_trainer(args, rollouts)
        trainer.train()
    rewards = [each["reward"] for each in trainer.state.log_history if "reward" in each]
    third = max(1, len(rewards) // 3)
    first, last = statistics.fmean(rewards[:third]), statistics.fmean(rewards[-third:])
    print(f"mean reward of the first {third} steps: {first:.3f}, of the last: {last:.3f}")


def draw_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Different sums and tasks with a tool, in turn: each row names its agent."""
    number = args.steps * args.prompts // len(SKILLS) + 1
    drawn = [name_agents(skill, number, args.seed) for skill in SKILLS]
    rows = list(chain.from_iterable(zip(*drawn, strict=True)))
    prompts = {json.dumps(row["responses_create_params"]["input"]): row for row in rows}
    return list(prompts.values())  # TRL finds a row by its prompt


def name_agents(skill: str, number: int, seed: int) -> Iterator[dict[str, Any]]:
    agent = {"type": "responses_api_agents", "name": mix_tasks.tasks.AGENTS[skill]}
    for row in mix_tasks.draw(skill, number, False, f"{seed}"):
        yield {**row, "agent_ref": agent}


def make_trainer(args: argparse.Namespace, rollouts: TrlRollouts) -> GRPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokenizer.response_template = qwen3_template  # the tiny model writes calls as Qwen3 does
    config = GRPOConfig(
        output_dir=str(args.folder / "trainer"),
        use_cpu=True,
        bf16=False,
        max_steps=args.steps,
        per_device_train_batch_size=args.prompts * args.members,
        num_generations=args.members,
        max_completion_length=128,
        temperature=1.0,
        beta=0.0,
        learning_rate=args.rate,
        adam_beta2=0.98,
        epsilon_high=0.28,
        loss_type="dapo",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        gradient_checkpointing=False,
        disable_tqdm=True,
        seed=args.seed,
    )
    trainer = GRPOTrainer(
        model=Qwen3ForCausalLM.from_pretrained(BASE, dtype=torch.float32),
        processing_class=tokenizer,
        args=config,
        train_dataset=rollouts.dataset(),
        rollout_func=rollouts,
        reward_funcs=[rollout_reward],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Shown())
    return trainer


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Context in which the servers run; the URL of their head server."""
    weights = "policy_model.responses_api_models.local_model.weight_sync.path"
    command = [
        str(Path(sys.executable).with_name("ng_run")),
        "+config_paths=[examples/trl/grpo.yaml]",
        f"++{weights}={folder / 'weights'}",
        "+head_server.port=0",
        f"+log_dir={folder / 'logs'}",
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready = next((line for line in process.stdout if "Head server: " in line), None)
            if ready is None:
                raise SystemExit(f"the servers have ended: see {folder / 'logs'}")
            yield ready.partition("Head server: ")[2].partition(" ")[0].rstrip(".")
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
