"""What a policy is trained with: log-probs of rows, the clipped loss, and KL estimates."""

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from rollout_kit.rl.rows import TrainingRow

TEMPERATURE = 1.0
"""At which rollouts are sampled: log-probs are compared at the same one."""

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
"""Bounds of the ratio of probabilities, new to old (DAPO's wider upper one)."""

MINIBATCHES, MICROBATCH = 4, 64
"""Optimizer steps for each batch, and sequences that are computed at once."""

MAX_NORM = 1.0

Figures = dict[str, float]


class Sample(NamedTuple):
    """A row, with a number for each of its tokens. Those of tokens that were not sampled are not
    read."""

    row: TrainingRow
    advantages: Sequence[float]
    old_values: Sequence[float] = ()
    returns: Sequence[float] = ()


class Penalty(NamedTuple):
    """A term that keeps the policy near a reference: in the loss, or in the reward."""

    reference: Callable[..., Any]
    """Is called as the model is."""
    coefficient: float
    estimate: str = "k3"
    is_in_reward: bool = False


class WithoutAdapter:
    """The reference of a model with a LoRA: the model itself, with its adapter off."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, **inputs: Any) -> Any:
        with self.model.disable_adapter():
            return self.model(**inputs)


def estimate_kl(own: torch.Tensor, reference: torch.Tensor, kind: str) -> torch.Tensor:
    """Of the log-probs of tokens that the policy sampled: k1, k2 or k3 of John Schulman's note."""
    log_ratio = reference - own
    if kind == "k1":
        return -log_ratio
    if kind == "k2":
        return log_ratio.square() / 2
    return log_ratio.exp() - 1 - log_ratio


def estimate_row_kl(rows: Sequence[TrainingRow], penalty: Penalty) -> list[list[float]]:
    """The estimate at each token of each row, by the log-probs as sampled; 0 where none was."""
    found: list[list[float]] = []
    for start in range(0, len(rows), MICROBATCH):
        part = rows[start : start + MICROBATCH]
        padded = pad(part)
        with torch.no_grad():
            reference = find_log_probs(penalty.reference, padded.ids)[1]
        kl = estimate_kl(padded.old, reference, penalty.estimate) * padded.mask
        found += cut(kl, part)
    return found


class Padded(NamedTuple):
    """Rows as tensors, padded on the right, where nothing reads it. `old` and `mask` have an item
    for each token after the first."""

    ids: torch.Tensor
    old: torch.Tensor
    mask: torch.Tensor


def pad(rows: Sequence[TrainingRow]) -> Padded:
    ids = pad_values([row.token_ids for row in rows]).long()
    old = pad_values([row.log_probs for row in rows])
    mask = pad_values([row.mask for row in rows])
    return Padded(ids, old[:, 1:], mask[:, 1:])


def pad_values(lists: Sequence[Sequence[float]]) -> torch.Tensor:
    found = torch.zeros(len(lists), max(map(len, lists)))
    for number, values in enumerate(lists):
        found[number, : len(values)] = torch.tensor(values)
    return found


def cut(values: torch.Tensor, rows: Sequence[TrainingRow]) -> list[list[float]]:
    """The opposite of padding: a list for each row, with 0 for the first token."""
    lists = values.tolist()
    return [[0.0, *one[: len(row.token_ids) - 1]] for one, row in zip(lists, rows, strict=True)]


def find_log_probs(
    model: Callable[..., Any], ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the whole vocabulary at each place after the first, and of the tokens there."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float() / TEMPERATURE
    everything = torch.log_softmax(logits, -1)
    return everything, everything.gather(-1, ids[:, 1:, None]).squeeze(-1)


def compute_policy_loss(
    model: Callable[..., Any], part: Sequence[Sample], penalty: Penalty | None = None
) -> tuple[torch.Tensor, Figures]:
    """The clipped loss of some rows, and the penalty, summed over tokens. Without a sampled token
    there are no figures."""
    ids, old, mask = pad([sample.row for sample in part])
    advantages = pad_values([sample.advantages for sample in part])[:, 1:]
    all_log_probs, log_probs = find_log_probs(model, ids)
    ratio = torch.exp((log_probs - old) * mask)
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    loss = -(torch.minimum(ratio * advantages, clipped * advantages) * mask).sum()
    more: Figures = {}
    if not mask.any():
        return loss, more
    if penalty is not None:
        with torch.no_grad():
            reference = find_log_probs(penalty.reference, ids)[1]
        divergence = estimate_kl(log_probs, reference, penalty.estimate) * mask
        if not penalty.is_in_reward:
            loss = loss + penalty.coefficient * divergence.sum()
        more["kl/mean"] = float(divergence.detach().sum() / mask.sum())
        more["kl/max"] = float(divergence.detach().max())
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


def train_minibatches(
    model: torch.nn.Module,
    optimizer: Any,
    samples: Sequence[Sample],
    rng: random.Random,
    compute_loss: Callable[[Sequence[Sample]], tuple[torch.Tensor, Figures]],
) -> tuple[Figures, float | None]:
    """One pass over the samples; returns the mean figures, and the norm of the gradient."""
    mixed = [sample for sample in samples if count_tokens(sample)]  # else there is no mean
    rng.shuffle(mixed)
    seen: dict[str, list[float]] = {}
    norms: list[float] = []
    for number in range(MINIBATCHES):
        part = sorted(mixed[number::MINIBATCHES], key=lambda sample: len(sample.row.token_ids))
        num_tokens = sum(map(count_tokens, part))
        for start in range(0, len(part), MICROBATCH):
            loss, figures = compute_loss(part[start : start + MICROBATCH])
            (loss / num_tokens).backward()
            for name, value in figures.items():
                seen.setdefault(name, []).append(value)
        if part:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            norms.append(float(norm))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    means = {
        name: max(values) if name.endswith("/max") else statistics.fmean(values)
        for name, values in seen.items()
    }
    return means, statistics.fmean(norms) if norms else None


def count_tokens(sample: Sample) -> int:
    """The tokens that the loss counts: nothing predicts the first one of a row."""
    return sum(sample.row.mask[1:])
