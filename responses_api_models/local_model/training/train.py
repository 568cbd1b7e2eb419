"""Train the tiny model from nothing, on a CPU, and write it as a Hugging Face folder.

    pip install torch==2.13.0 transformers==5.23.0 tokenizers==0.23.3
    python responses_api_models/local_model/training/train.py

Seeded: the same samples in the same order. Threads add up in no fixed order, so that two runs
differ in the last bits, and in the end by a few hundredths of reward. Only numbers that are not
held out are ever drawn, and every sample is checked for it.
"""

import argparse
import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# a core that is shared is waited for, not spun on; read when torch is imported
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from conversations import conversation, parts
from problems import SKILLS, draw, is_held_out
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from vocabulary import VOCABULARY, build_tokenizer

CHECKPOINT = Path(__file__).parent.parent / "checkpoint"

MIX = (48, 40, 12)
"""Samples of each skill, in percent. A tool sample is four times as long as a sum."""

NUM_EASY_SAMPLES = 16_000
"""The first samples have numbers below 100 only: what is learnt there, larger ones build on."""

ROWS, ROW_LENGTH = 16, 128
"""Tokens of a training step; several samples share a row and do not see each other."""

AT_ONCE = 4096
"""Conversations whose texts are encoded together."""

IGNORED = -100
"""The label of a token that the model is not to learn to write."""

MATRIX_LR, OTHER_LR = 0.02, 3e-3
WARM_UP_STEPS = 100
DECAY_FROM = 0.6
"""Share of the steps after which the learning rate falls, linearly to zero."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of samples, one behind the other; `sample` numbers them within a row, 0 is padding."""

    ids: torch.Tensor
    labels: torch.Tensor
    sample: torch.Tensor
    position: torch.Tensor

    @property
    def mask(self) -> torch.Tensor:
        same = self.sample[:, :, None] == self.sample[:, None, :]
        return (same & torch.ones(ROW_LENGTH, ROW_LENGTH, dtype=torch.bool).tril())[:, None]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--output", type=Path, default=CHECKPOINT)
    options.add_argument("--steps", type=int, default=900)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    model = Qwen3ForCausalLM(configuration())
    tokenizer = build_tokenizer(model.config.max_position_embeddings)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{num_parameters:,} parameters, {len(tokenizer)} tokens", flush=True)
    train(model, batches(tokenizer, random.Random(given.seed)), given.steps)
    save(model, tokenizer, given.output)


def configuration() -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        pad_token_id=0,
        eos_token_id=2,
    )


def train(model: Qwen3ForCausalLM, stream: Iterator[Batch], num_steps: int) -> None:
    """Muon for the layers' matrices, AdamW for embeddings and norms."""
    named = dict(model.named_parameters())
    matrices = [x for name, x in named.items() if x.ndim == 2 and "embed" not in name]
    others = [x for name, x in named.items() if x.ndim != 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=MATRIX_LR, weight_decay=0.01),
        torch.optim.AdamW(others, lr=OTHER_LR, betas=(0.9, 0.98), weight_decay=0.0),
    ]

    def scale(step: int) -> float:
        warm = (step + 1) / WARM_UP_STEPS
        return min(1.0, warm, (1 - step / num_steps) / (1 - DECAY_FROM))

    schedules = [torch.optim.lr_scheduler.LambdaLR(each, scale) for each in optimizers]
    hidden = torch.compile(hidden_states, dynamic=False)
    began, sum_loss = time.perf_counter(), 0.0
    for step, batch in enumerate(itertools.islice(stream, num_steps), 1):
        states = hidden(model, batch.ids, batch.mask, batch.position)[:, :-1]
        labels = batch.labels[:, 1:]
        learned = labels != IGNORED
        logits = model.lm_head(states[learned].float())
        loss = torch.nn.functional.cross_entropy(logits, labels[learned])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *schedules):
            each.step()
        model.zero_grad()
        sum_loss += loss.item()
        if step % 50 == 0:
            took_s, cpu_s = time.perf_counter() - began, time.process_time()
            print(
                f"step {step} loss {sum_loss / 50:.4f} {took_s:.0f} s, cpu {cpu_s:.0f} s",
                flush=True,
            )
            sum_loss = 0.0


def hidden_states(
    model: Qwen3ForCausalLM, ids: torch.Tensor, mask: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """The layers' matrix products are done in bfloat16, which is faster where a CPU knows it."""
    with torch.autocast("cpu", torch.bfloat16):
        return model.model(
            input_ids=ids, attention_mask=mask, position_ids=position, use_cache=False
        ).last_hidden_state


def batches(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Iterator[Batch]:
    stream = samples(tokenizer, rng)
    sample = next(stream)
    while True:
        shape = (ROWS, ROW_LENGTH)
        batch = Batch(
            torch.zeros(shape, dtype=torch.long),
            torch.full(shape, IGNORED),
            torch.zeros(shape, dtype=torch.long),
            torch.zeros(shape, dtype=torch.long),
        )
        for row in range(ROWS):
            begin = 0
            for number in itertools.count(1):
                ids, labels = sample
                end = begin + len(ids)
                if end > ROW_LENGTH:
                    assert begin, f"a sample of {len(ids)} tokens is longer than a row"
                    break
                batch.ids[row, begin:end] = torch.tensor(ids)
                batch.labels[row, begin:end] = torch.tensor(labels)
                batch.sample[row, begin:end] = number
                batch.position[row, begin:end] = torch.arange(len(ids))
                begin, sample = end, next(stream)
        yield batch


def samples(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random
) -> Iterator[tuple[list[int], list[int]]]:
    """Token ids and labels of ever new conversations, none about numbers that are held out."""
    for begin in itertools.count(0, AT_ONCE):
        levels = (1, 2) if begin < NUM_EASY_SAMPLES else (1, 2, 3)
        skills = rng.choices(SKILLS, MIX, k=AT_ONCE)
        problems = [draw(rng, skill, held_out=False, levels=levels) for skill in skills]
        assert not any(is_held_out(problem.numbers) for problem in problems)
        made = [parts(*conversation(rng, problem)) for problem in problems]
        texts = [text for each in made for text, _ in each]
        encoded = iter(tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False))
        for each in made:
            ids, labels = [], []
            for _, is_learned in each:
                more = next(encoded).ids
                ids += more
                labels += more if is_learned else [IGNORED] * len(more)
            yield ids, labels


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, output: Path) -> None:
    """bfloat16, with the files that transformers, vLLM and `local_model` read."""
    model.to(torch.bfloat16)
    model.config.dtype = "bfloat16"
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    sampling = {"do_sample": True, "temperature": 1.0}
    (output / "generation_config.json").write_text(json.dumps({**ends, **sampling}) + "\n")


if __name__ == "__main__":
    main()
