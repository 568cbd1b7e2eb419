"""As far as a CPU goes: OpenRLHF reads the settings and the data, our agent makes rollouts with the
tiny model in place of vLLM, and OpenRLHF makes experiences of them, with advantages and loss.

python examples/openrlhf/check.py [--folder results/openrlhf]
"""

import argparse
import ast
import asyncio
import runpy
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import openrlhf
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from openrlhf.datasets import PromptDataset
from openrlhf.datasets.utils import blending_datasets
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
from openrlhf.utils.config import hierarchize
from tiny_engine import TinyEngine

FOLDER = Path(__file__).parent

PACKAGE = Path(openrlhf.__path__[0])

TASKS, MEMBERS = 8, 4

MOST_TOKENS = 96

READ = "_process_response_into_experience"


class PlayedActor:
    """OpenRLHF's actor around vLLM, as far as an agent asks it."""

    def __init__(self) -> None:
        self.engine = TinyEngine()

    async def generate(self, prompt: list[int], sampling: Any) -> Any:
        made = self.engine.generate(prompt, sampling.temperature, sampling.max_tokens)
        log_probs = [
            {token: SimpleNamespace(logprob=log_prob)}
            for token, log_prob in zip(made.token_ids, made.log_probs, strict=True)
        ]
        output = SimpleNamespace(
            token_ids=made.token_ids, logprobs=log_probs, finish_reason=made.finish_reason
        )
        return SimpleNamespace(outputs=[output])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("results/openrlhf"))
    given = parser.parse_args()
    words = (FOLDER / "settings.txt").read_text().split()
    words += ["--data.prompt_dataset", f"{given.folder}/train.jsonl"]
    args = read_settings([*words, "--rollout.n_samples_per_prompt", str(MEMBERS)])
    actor = PlayedActor()
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False, print=lambda *said: None)
    rows = blending_datasets(args.data.prompt_dataset, None, strategy)
    data = PromptDataset(rows, actor.engine.tokenizer, strategy)
    num_words = sum(word.startswith("--") for word in words) - 1
    print(f"settings: all {num_words} are known; data: {len(data):,} tasks")
    every = len(data) // TASKS
    tasks = [data[at * every] for at in range(TASKS) for _ in range(MEMBERS)]
    answers = asyncio.run(roll_out(actor, tasks))
    read = take_function("trainer/ppo_utils/samples_generator.py", READ, Experience=Experience)
    experiences = [read(SimpleNamespace(args=args), each, max_len=512) for each in answers]
    loss, figures = compute_loss(strategy, experiences)
    assert torch.isfinite(loss)
    rewards = torch.cat([each.rewards for each in experiences])
    print(f"{len(experiences)} rollouts; mean reward {float(rewards.mean()):.3f}")
    print(f"loss {float(loss):+.4f}, {figures}")


def read_settings(words: list[str]) -> Any:
    """By the parser of OpenRLHF's command, whose module makes it only when it is run."""
    tree = ast.parse((PACKAGE / "cli/train_ppo_ray.py").read_text())
    block = next(each for each in tree.body[::-1] if isinstance(each, ast.If))
    ends = [ast.unparse(each) for each in block.body].index("args = parser.parse_args()")
    names: dict[str, Any] = {"argparse": argparse, "datetime": datetime}
    exec(compile(ast.Module(block.body[:ends], []), "train_ppo_ray.py", "exec"), names)
    return hierarchize(names["parser"].parse_args(words))


def take_function(path: str, name: str, **names: Any) -> Any:
    """A function out of its source: its module imports vLLM or DeepSpeed."""
    tree = ast.parse((PACKAGE / path).read_text())
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    found = next(each for each in functions if each.name == name)
    found.decorator_list = []
    names |= {"torch": torch, "List": list}
    exec(compile(ast.Module([found], []), path, "exec"), names)
    return names[name]


async def roll_out(actor: PlayedActor, tasks: list[Any]) -> list[Any]:
    """What the agent answers for each task, with the sampling parameters of OpenRLHF."""
    agent = runpy.run_path(str(FOLDER / "agent.py"))["AgentExecutor"]
    agent.output_dir = None
    executor, tokenizer = agent(), actor.engine.tokenizer

    async def run(task: Any) -> Any:
        _, prompt, label, _ = task
        sampling = SimpleNamespace(
            temperature=1.0, top_p=1.0, top_k=-1, max_tokens=MOST_TOKENS, logprobs=1
        )
        return await executor.execute(prompt, label, sampling, 512, tokenizer, actor)

    found = await asyncio.gather(*map(run, tasks))
    await executor._run.close()
    return found


def leave_out() -> None:
    """Leave out DeepSpeed and vLLM, and the parts of OpenRLHF that need them. Its advantages and
    loss only import them."""
    parts = {name: ModuleType(name) for name in ("deepspeed", "openrlhf.trainer.ray.launcher")}
    for name in ("models", "trainer/ray"):
        part = ModuleType(f"openrlhf.{name.replace('/', '.')}")
        part.__path__ = [str(PACKAGE / name)]
        parts[part.__name__] = part
    parts["openrlhf.trainer.ray.launcher"].RayActorGroup = object  # type: ignore[attr-defined]
    sys.modules |= parts


def compute_loss(strategy: Any, experiences: list[Any]) -> tuple[torch.Tensor, dict[str, float]]:
    """The advantages of all rollouts, and the mean of their losses, by OpenRLHF's own code. The
    policy has not changed, and there is no reference."""
    leave_out()
    from openrlhf.models.loss import PolicyLoss
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    maker = RemoteExperienceMaker(
        None, None, None, None, FixedKLController(0.0), strategy, tokenizer=None
    )
    for number, each in enumerate(experiences):
        each.index = [number]
        each.kl = torch.zeros_like(each.rollout_log_probs)
    losses, clipped = [], []
    loss_of = PolicyLoss(*strategy.args.actor.eps_clip_low_high or (0.2, 0.2))
    for each in maker.compute_advantages_and_returns(experiences):
        old = each.rollout_log_probs
        loss, ratio, *_ = loss_of(old, old, each.advantages, action_mask=each.action_mask)
        losses.append(loss)
        clipped.append(float(ratio))
    figures = {"clip_ratio": max(clipped), "num": float(len(losses))}
    return torch.stack(losses).mean(), figures


if __name__ == "__main__":
    main()
