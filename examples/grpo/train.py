"""GRPO in plain torch: take groups of rollouts from a buffer, update a policy, write a checkpoint
that the model server follows, and so on. Killed at any time, it continues where it was.

python examples/grpo/train.py --buffer http://127.0.0.1:9500 --head http://127.0.0.1:11000
"""

import argparse
import asyncio
import json
import random
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from rollout_kit.errors import RolloutKitError
from rollout_kit.rl import (
    BatchAlarms,
    CheckpointManager,
    measure_batch,
    open_buffer,
    read_group,
)
from rollout_kit.rl.rows import TrainingRow

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "responses_api_models/local_model/checkpoint"

TEMPERATURE = 1.0
"""At which rollouts are sampled: log-probs are compared at the same one."""

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
"""Bounds of the ratio of probabilities, new to old (DAPO's wider upper one)."""

MINIBATCHES, MICROBATCH = 4, 64
"""Optimizer steps for each batch, and sequences that are computed at once."""

MAX_NORM = 1.0

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
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return {str(number): one.state_dict() for number, one in enumerate(self.each)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for number, optimizer in enumerate(self.each):
            optimizer.load_state_dict(state[str(number)])


class Penalty(NamedTuple):
    """A term that keeps the policy near its first weights."""

    reference: torch.nn.Module
    coefficient: float
    estimate: str = "k3"


def estimate_kl(own: torch.Tensor, reference: torch.Tensor, kind: str) -> torch.Tensor:
    """Of the log-probs of tokens that the policy sampled: k1, k2 or k3 of John Schulman's note."""
    log_ratio = reference - own
    if kind == "k1":
        return -log_ratio
    if kind == "k2":
        return log_ratio.square() / 2
    return log_ratio.exp() - 1 - log_ratio


def update(
    model: torch.nn.Module,
    optimizers: Optimizers,
    rows: list[TrainingRow],
    rng: random.Random,
    penalty: Penalty | None = None,
) -> dict[str, float]:
    """One pass over the rows, in minibatches; returns what a trainer watches."""
    rng.shuffle(rows)
    seen: dict[str, list[float]] = {}
    for number in range(MINIBATCHES):
        part = sorted(rows[number::MINIBATCHES], key=lambda row: len(row.token_ids))
        num_tokens = sum(sum(row.mask) for row in part)
        for start in range(0, len(part), MICROBATCH):
            loss, figures = loss_of(model, part[start : start + MICROBATCH], penalty)
            (loss / num_tokens).backward()
            for name, value in figures.items():
                seen.setdefault(name, []).append(value)
        if part:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            seen.setdefault("policy/grad_norm", []).append(float(norm))
            optimizers.step()
    return {name: statistics.fmean(values) for name, values in seen.items()}


def loss_of(
    model: torch.nn.Module, part: Sequence[TrainingRow], penalty: Penalty | None = None
) -> tuple[torch.Tensor, dict[str, float]]:
    """The clipped loss of some rows, and the penalty, summed over tokens."""
    longest = max(len(row.token_ids) for row in part)
    ids = torch.zeros(len(part), longest, dtype=torch.long)
    old, mask = torch.zeros(len(part), longest), torch.zeros(len(part), longest)
    for number, row in enumerate(part):  # padded on the right, where nothing reads it
        length = len(row.token_ids)
        ids[number, :length] = torch.tensor(row.token_ids)
        old[number, :length] = torch.tensor(row.log_probs)
        mask[number, :length] = torch.tensor(row.mask)
    old, mask = old[:, 1:], mask[:, 1:]
    advantages = torch.tensor([[row.advantage] for row in part])
    all_log_probs, log_probs = find_log_probs(model, ids)
    ratio = torch.exp((log_probs - old) * mask)
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    loss = -(torch.minimum(ratio * advantages, clipped * advantages) * mask).sum()
    more: dict[str, float] = {}
    if penalty is not None:
        with torch.no_grad():
            reference = find_log_probs(penalty.reference, ids)[1]
        divergence = estimate_kl(log_probs, reference, penalty.estimate) * mask
        loss = loss + penalty.coefficient * divergence.sum()
        more["kl/mean"] = float(divergence.detach().sum() / mask.sum())
    with torch.no_grad():
        num = mask.sum()
        entropy = -(all_log_probs.exp() * all_log_probs).sum(-1)
        is_clipped = torch.minimum(ratio * advantages, clipped * advantages) < ratio * advantages
        figures = {
            "policy/approx_kl": float(((old - log_probs) * mask).sum() / num),
            "policy/entropy": float((entropy * mask).sum() / num),
            "policy/clip_fraction": float((is_clipped * mask).sum() / num),
        }
    return loss, figures | more


def find_log_probs(model: torch.nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the whole vocabulary at each place after the first, and of the tokens there."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float() / TEMPERATURE
    everything = torch.log_softmax(logits, -1)
    return everything, everything.gather(-1, ids[:, 1:, None]).squeeze(-1)


def serve_newest(head: str, folder: Path, step: int, name: str = "policy_model") -> None:
    """Have the model server load the newest checkpoint now, rather than at its next look."""
    while True:
        try:
            with urllib.request.urlopen(f"{head}/server_instances", timeout=60) as reply:
                urls = {each["name"]: each["urls"][0] for each in json.load(reply)}
            if name not in urls:
                raise SystemExit(f"{head} has no server {name}; there are: {', '.join(urls)}")
            header = {"content-type": "application/json"}
            request = urllib.request.Request(f"{urls[name]}/load_weights", b"{}", header)
            with urllib.request.urlopen(request, timeout=60) as reply:
                told = json.load(reply)
            if told["version"] != step:
                raise SystemExit(
                    f"{name} serves {told} after step {step}: is its weight_sync.path"
                    f" {folder.resolve() / 'weights'}, and is that folder new?"
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


async def train(args: argparse.Namespace) -> None:
    model = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32)
    optimizers = Optimizers(model, args.rate, args.steps)
    manager = CheckpointManager(args.folder / "weights", keep_last=3, base=args.base)
    first = manager.resume(model, optimizers)
    penalty = None
    if args.kl is not None:
        reference = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32).eval()
        penalty = Penalty(reference, args.kl, args.kl_estimate)
    alarms = BatchAlarms()
    trained = set(manager.state.get("trained", []))  # the last step may not be acknowledged yet
    if first:
        log_step(args.folder, first, {**manager.metrics, **manager.state})
        print(f"continuing after step {first}", flush=True)
    async with await open_buffer(args.buffer) as buffer:
        num_groups = args.groups or buffer.policy.batch or GROUPS
        if num_groups != (buffer.policy.batch or num_groups):
            raise SystemExit(f"--groups {num_groups}: the buffer's batch is {buffer.policy.batch}")
        await asyncio.to_thread(serve_newest, args.head, args.folder, first)
        await buffer.set_version(first)
        for step in range(first + 1, args.steps + 1):
            began = time.perf_counter()
            while True:
                batch = await buffer.get(num_groups)
                if batch is None:
                    raise SystemExit("the buffer is finished")
                groups = [group for group in batch.groups if group.key not in trained]
                if groups:
                    break
                await buffer.ack(batch.lease)
            manager.keep_best((await buffer.stats())["best_version"])
            optimizers.begin(step)
            records = [read_group(group.rollouts, group.rewards) for group in groups]
            rows = [row for record in records for row in record.rows if row.advantage]
            rng = random.Random(f"{args.seed} {step}")
            figures = await asyncio.to_thread(update, model, optimizers, rows, rng, penalty)
            figures |= measure_batch(records, version=step - 1)
            figures["time/step_s"] = time.perf_counter() - began
            trained = {group.key for group in groups}
            state: dict[str, Any] = {"trained": sorted(trained)}
            if sources := [s for group in groups if (s := group.rollouts[0].get("mix"))]:
                state["sources"] = sources  # environments of a mix
            manager.save(model, optimizers, step, figures, state)
            log_step(args.folder, step, {**figures, **state})
            await buffer.ack(batch.lease)
            await asyncio.to_thread(serve_newest, args.head, args.folder, step)
            await buffer.set_version(step, figures)
            print(format_step(step, args.steps, figures), *alarms.check(figures), flush=True)


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
    seconds = f"{figures['time/step_s']:.1f} s"
    return f"step {step:3} of {num_steps}  reward {reward:.3f} {bar:40}{shown}  {seconds}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--buffer", required=True, help="URL of the buffer")
    parser.add_argument("--head", required=True, help="URL of the head server of the ng_run")
    parser.add_argument("--base", type=Path, default=BASE, help="folder of the first model")
    parser.add_argument("--folder", type=Path, default=Path("results/grpo"))
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--groups", type=int, help="groups of a step; default: the buffer's batch")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of matrices")
    parser.add_argument("--kl", type=float, help="coefficient of a KL term; 0 only measures it")
    parser.add_argument("--kl-estimate", choices=("k1", "k2", "k3"), default="k3")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not (args.base / "config.json").is_file():
        parser.error(f"--base {args.base}: no model, as there is no config.json")
    torch.manual_seed(args.seed)
    torch.set_num_threads(2)
    disable_progress_bar()
    try:
        asyncio.run(train(args))
    except RolloutKitError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
