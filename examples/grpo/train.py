"""GRPO in plain torch: take groups of rollouts from a buffer, update a policy, write a checkpoint
that the model server follows, and so on. Killed at any time, it continues where it was.

python examples/grpo/train.py --buffer http://127.0.0.1:9500 --head http://127.0.0.1:11000
"""

import argparse
import asyncio
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from losses import (
    Figures,
    Penalty,
    Sample,
    WithoutAdapter,
    compute_policy_loss,
    estimate_row_kl,
    train_minibatches,
)
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from rollout_kit.analysis.metrics.advantages import advantages
from rollout_kit.errors import RolloutKitError
from rollout_kit.rl import (
    BatchAlarms,
    Buffer,
    BufferedGroup,
    CheckpointManager,
    GroupBatch,
    Phases,
    PhaseTimer,
    measure_batch,
    open_buffer,
    read_group,
)
from rollout_kit.rl.rows import GroupRecord, TrainingRow

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "responses_api_models/local_model/checkpoint"

GROUPS = 32
"""Of a step, where the buffer says no other number."""


class Optimizers:
    """Muon for matrices and AdamW for the rest; both rates fall to 0 at the last step."""

    def __init__(self, model: torch.nn.Module, rate: float, num_steps: int) -> None:
        matrices, others = [], []
        for name, value in model.named_parameters():
            is_matrix = value.ndim == 2 and "embed" not in name
            (matrices if is_matrix else others).append(value)
        self.each = [
            torch.optim.Muon(matrices, lr=rate, weight_decay=0.0),
            torch.optim.AdamW(others, lr=rate / 10, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.rates, self.num_steps = [rate, rate / 10], num_steps

    def begin(self, step: int) -> None:
        """Set the rates of this step, the first of which is 1."""
        for optimizer, rate in zip(self.each, self.rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * (1 - (step - 1) / self.num_steps)

    def step(self) -> None:
        for optimizer in self.each:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.each:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {str(number): one.state_dict() for number, one in enumerate(self.each)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for number, optimizer in enumerate(self.each):
            optimizer.load_state_dict(state[str(number)])


class Learner(Protocol):
    """Changes a policy by the groups of a step. Its state is saved with each checkpoint."""

    def update(self, step: int, groups: Sequence[GroupRecord], rng: random.Random) -> Figures: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class GrpoLearner:
    """The advantage of a rollout, against the others of its group, is that of all its tokens."""

    def __init__(self, args: argparse.Namespace, model: torch.nn.Module) -> None:
        self.model, self.penalty = model, make_penalty(args, model)
        self.optimizers = Optimizers(model, args.rate, args.steps)

    def update(self, step: int, groups: Sequence[GroupRecord], rng: random.Random) -> Figures:
        self.optimizers.begin(step)
        samples = [sample for group in groups for sample in make_samples(group, self.penalty)]
        compute = partial(compute_policy_loss, self.model, penalty=self.penalty)
        figures, norm = train_minibatches(self.model, self.optimizers, samples, rng, compute)
        return figures if norm is None else {**figures, "policy/grad_norm": norm}

    def state_dict(self) -> dict[str, Any]:
        return self.optimizers.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizers.load_state_dict(state)


def make_penalty(args: argparse.Namespace, model: Any) -> Penalty | None:
    if args.kl is None:
        return None
    if args.lora:
        reference: Callable[..., Any] = WithoutAdapter(model)
    else:
        reference = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32).eval()
    return Penalty(reference, args.kl, args.kl_estimate, args.kl_in == "reward")


def make_samples(group: GroupRecord, penalty: Penalty | None) -> list[Sample]:
    """The rows of a group that teach something: with a KL term in the loss also those without an
    advantage. With KL in the reward, the divergence of a rollout is taken from its reward before
    rewards are compared."""
    is_in_loss = penalty is not None and penalty.coefficient and not penalty.is_in_reward
    gained = [each.advantage for each in group.rollouts]
    if penalty is not None and penalty.is_in_reward:
        gained = advantages(
            [
                None if each.reward is None else each.reward - sum_penalty(each.rows, penalty)
                for each in group.rollouts
            ]
        )
    return [
        Sample(row, [gain] * len(row.token_ids))
        for rollout, gain in zip(group.rollouts, gained, strict=True)
        for row in rollout.rows
        if gain or (is_in_loss and rollout.reward is not None)
    ]


def sum_penalty(rows: Sequence[TrainingRow], penalty: Penalty) -> float:
    return penalty.coefficient * sum(map(sum, estimate_row_kl(rows, penalty)))


def find_url(head: str, name: str = "policy_model") -> str:
    """The address of a server of the ng_run."""
    with urllib.request.urlopen(f"{head}/server_instances", timeout=60) as reply:
        urls = {each["name"]: each["urls"][0] for each in json.load(reply)}
    if name not in urls:
        raise SystemExit(f"{head} has no server {name}; there are: {', '.join(urls)}")
    return urls[name]


def serve_newest(head: str, weights: str, step: int, name: str = "policy_model") -> None:
    """Have the model server load the newest checkpoint now, rather than at its next look."""
    while True:
        try:
            header = {"content-type": "application/json"}
            url = f"{find_url(head, name)}/load_weights"
            request = urllib.request.Request(url, b"{}", header)
            with urllib.request.urlopen(request, timeout=60) as reply:
                told = json.load(reply)
            if told["version"] != step:
                raise SystemExit(
                    f"{name} serves {told} after step {step}: is its weight_sync.path {weights},"
                    " and is that folder new?"
                )
            return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                why = f"{error}: {error.read().decode(errors='replace')}"
                raise SystemExit(f"{name} loads no weights: {why}") from None
            print(f"the model server fails ({error}); trying again", flush=True)
            time.sleep(2)
        except OSError as error:  # it may be starting again
            print(f"the model server does not answer ({error}); trying again", flush=True)
            time.sleep(2)


MakeLearner = Callable[[argparse.Namespace, torch.nn.Module], Learner]


async def train(args: argparse.Namespace, make_learner: MakeLearner = GrpoLearner) -> None:
    model = load_model(args)
    learner = make_learner(args, model)
    base = None if args.lora else args.base  # an adapter is served on the base of its server
    manager = CheckpointManager(args.weights, keep_last=3, base=base)
    first = manager.resume(model, learner)
    alarms = BatchAlarms()
    trained = set(manager.state.get("trained", []))  # the last step may not be acknowledged yet
    if first:
        log_step(args.folder, first, {**manager.metrics, **manager.state})
        print(f"continuing after step {first}", flush=True)
    async with await open_buffer(args.buffer) as buffer:
        num_groups = args.groups or buffer.policy.batch or GROUPS
        if num_groups != (buffer.policy.batch or num_groups):
            raise SystemExit(f"--groups {num_groups}: the buffer's batch is {buffer.policy.batch}")
        await asyncio.to_thread(serve_newest, args.head, args.weights, first)
        await buffer.set_version(first)
        for step in range(first + 1, args.steps + 1):
            phase = PhaseTimer()
            with phase("wait"):
                batch, groups = await take_groups(buffer, num_groups, trained)
            manager.keep_best((await buffer.stats())["best_version"])
            oldest = buffer.policy.oldest_token(step - 1)
            records = [read_group(each.rollouts, each.rewards, oldest=oldest) for each in groups]
            rng = random.Random(f"{args.seed} {step}")
            with phase("update"):
                figures = await asyncio.to_thread(update, args, learner, step, records, rng)
            trained = {group.key for group in groups}
            state: dict[str, Any] = {"trained": sorted(trained)}
            if sources := [s for group in groups if (s := group.rollouts[0].get("mix"))]:
                state["sources"] = sources  # environments of a mix
            figures |= measure_batch(records, version=step - 1)
            with phase("save"):
                manager.save(model, learner, step, figures, state)
            await buffer.ack(batch.lease)
            with phase("sync"):
                await asyncio.to_thread(serve_newest, args.head, args.weights, step)
            figures |= phase.figures()
            log_step(args.folder, step, {**figures, **state})
            await buffer.set_version(step, figures)
            print(format_step(step, args.steps, figures), *alarms.check(figures), flush=True)


def update(
    args: argparse.Namespace,
    learner: Learner,
    step: int,
    records: Sequence[GroupRecord],
    rng: random.Random,
) -> Figures:
    with rest(args):
        return learner.update(step, records, rng)


def rest(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Context in which the model server sleeps, if it shares the GPUs of the trainer."""
    if args.placement == "apart":
        return nullcontext()
    return Phases(find_url(args.head)).training()


def load_model(args: argparse.Namespace) -> Any:
    model = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32)
    if not args.lora:
        return model
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(
        r=args.lora, lora_alpha=2 * args.lora, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return get_peft_model(model, lora)


async def take_groups(
    buffer: Buffer, number: int, trained: set[str]
) -> tuple[GroupBatch, list[BufferedGroup]]:
    """The next batch, and its groups that the last step has not used already."""
    while True:
        batch = await buffer.get(number)
        if batch is None:
            raise SystemExit("the buffer is finished")
        if groups := [group for group in batch.groups if group.key not in trained]:
            return batch, groups
        await buffer.ack(batch.lease)


def log_step(folder: Path, step: int, about: dict[str, Any]) -> None:
    """Append a step to the log, unless a trainer that was killed has done it."""
    with (folder / "steps.jsonl").open("a+") as log:
        log.seek(0)
        if step not in (json.loads(line)["step"] for line in log):
            log.write(json.dumps({"step": step, **about}) + "\n")


def format_step(step: int, num_steps: int, figures: dict[str, float]) -> str:
    """A step in a line. Where all rewards of each group are equal, there is no gradient, and the
    entropy is not computed."""
    reward = figures["reward/mean"]
    bar = "█" * round(40 * reward)
    entropy = figures.get("policy/entropy")
    shown = "  no gradient  " if entropy is None else f"  entropy {entropy:.3f}"
    seconds = f"{figures['time/step_s'] - figures['time/wait_s']:.1f} s"
    return f"step {step:3} of {num_steps}  reward {reward:.3f} {bar:40}{shown}  {seconds}"


def main() -> None:
    run(make_parser(), GrpoLearner)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--buffer", required=True, help="URL of the buffer")
    parser.add_argument("--head", required=True, help="URL of the head server of the ng_run")
    parser.add_argument("--base", type=Path, default=BASE, help="folder of the first model")
    parser.add_argument("--folder", type=Path, default=Path("results/grpo"))
    parser.add_argument("--weights", help="folder or s3://bucket/path; default: FOLDER/weights")
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--groups", type=int, help="groups of a step; default: the buffer's batch")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of matrices")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="train an adapter")
    parser.add_argument("--kl", type=float, help="coefficient of a KL term; 0 only measures it")
    parser.add_argument("--kl-estimate", choices=("k1", "k2", "k3"), default="k3")
    parser.add_argument("--kl-in", choices=("loss", "reward"), default="loss")
    parser.add_argument(
        "--placement", choices=("apart", "phases"), default="apart", help="phases: on the same GPUs"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser


def run(parser: argparse.ArgumentParser, make_learner: MakeLearner) -> None:
    """Train as the command line says."""
    args = parser.parse_args()
    if not (args.base / "config.json").is_file():
        parser.error(f"--base {args.base}: no model, as there is no config.json")
    args.folder.mkdir(parents=True, exist_ok=True)
    args.weights = args.weights or str(args.folder.resolve() / "weights")
    torch.manual_seed(args.seed)
    torch.set_num_threads(2)
    disable_progress_bar()
    try:
        asyncio.run(train(args, make_learner))
    except RolloutKitError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
