"""A policy that is a table: the next token depends on the last one alone, so that all of a training
can be computed by hand. It needs torch."""

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

VOCABULARY = 7


def load_example(path: str) -> Any:
    """A script of the examples, which finds those of examples/grpo."""
    if str(EXAMPLES / "grpo") not in sys.path:
        sys.path.insert(0, str(EXAMPLES / "grpo"))
    name = path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_model(seed: int) -> Any:
    import torch

    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.randn(VOCABULARY, VOCABULARY, generator=generator)
            self.table = torch.nn.Parameter(drawn)

        def forward(self, input_ids: Any, use_cache: bool = False) -> Any:
            class Output:
                logits = self.table[input_ids]

            return Output()

    return Table()


def read_table(model: Any) -> list[list[float]]:
    return [[float(each) for each in row] for row in model.table.detach()]


def score_token(table: list[list[float]], before: int, token: int) -> float:
    """Its log-prob."""
    return table[before][token] - math.log(sum(map(math.exp, table[before])))


def list_sampled_pairs(row: Any) -> list[tuple[int, int]]:
    """The token before each sampled one, and that one."""
    pairs = zip(row.token_ids, row.token_ids[1:], row.mask[1:], strict=False)
    return [(before, token) for before, token, is_sampled in pairs if is_sampled]


def make_row(ids: list[int], mask: list[int], table: list[list[float]], **more: Any) -> Any:
    """A row that this table has sampled."""
    from rollout_kit.rl.rows import TrainingRow

    log_probs = [
        score_token(table, before, token) if is_sampled else 0.0
        for before, token, is_sampled in zip([0, *ids], ids, mask, strict=False)
    ]
    ones = [1.0] * len(ids)
    given = {"advantage": 0.0, "reward": None, "group_id": "g", "rollout_index": 0, **more}
    return TrainingRow(ids, mask, log_probs, ones, [0] * len(ids), **given)
