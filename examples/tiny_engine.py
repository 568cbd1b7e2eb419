"""An engine for checks on a CPU: samples one answer at a time with the tiny model."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = Path(__file__).resolve().parents[1] / "responses_api_models/local_model/checkpoint"


class Answer(NamedTuple):
    token_ids: list[int]
    log_probs: list[float]
    finish_reason: str


class TinyEngine:
    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(BASE)
        self._model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32).eval()
        ends = self._model.generation_config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [ends])

    def generate(self, prompt: list[int], temperature: float, max_tokens: int) -> Answer:
        """Sample until the model ends its turn. The log-probs are those at this temperature."""
        ids, past, log_probs = list(prompt), None, []
        unseen = ids
        with torch.inference_mode():
            while len(log_probs) < max_tokens:
                made = self._model(torch.tensor([unseen]), past_key_values=past, use_cache=True)
                past = made.past_key_values
                scores = torch.log_softmax(made.logits[0, -1] / temperature, -1)
                token = int(torch.multinomial(scores.exp(), 1))
                ids.append(token)
                unseen = [token]
                log_probs.append(float(scores[token]))
                if token in self._ends:
                    return Answer(ids[len(prompt) :], log_probs, "stop")
        return Answer(ids[len(prompt) :], log_probs, "length")
