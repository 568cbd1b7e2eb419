"""The Prometheus metrics of vLLM that show how busy an engine is, and what it holds."""

import re
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from rollout_kit.types import JsonObject

WANTED: dict[str, tuple[str, Callable[[Iterable[float]], float]]] = {
    "vllm:num_requests_running": ("engine_running", sum),
    "vllm:num_requests_waiting": ("engine_waiting", sum),
    "vllm:kv_cache_usage_perc": ("kv_cache", max),
    "vllm:num_preemptions_total": ("preemptions", sum),
}
"""vLLM's name → our name, and how to combine the values of data-parallel engines."""


def read(text: str) -> dict[str, float]:
    """The metrics in the text, by our names; `kv_cache` is between 0 and 1."""
    found: dict[str, list[float]] = {}
    for name, value in _read_values(text, WANTED):
        found.setdefault(name, []).append(value)
    return {WANTED[name][0]: WANTED[name][1](values) for name, values in found.items()}


def _read_values(text: str, names: Container[str]) -> Iterator[tuple[str, float]]:
    """Each metric of these names, with its value; a line that has none is left out."""
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        if name in names:
            with suppress(ValueError, IndexError):
                yield name, float(rest.rpartition("}")[2].split()[0])


CACHE = "vllm:cache_config_info{"

LABEL = re.compile(r'(\w+)="([^"]*)"')

SEQUENCES = 256
"""vLLM's `max_num_seqs` where it is not given; it takes more on the largest GPUs."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the engines behind one URL hold, and what they have answered so far."""

    cache_tokens: int = 0
    num_engines: int = 0
    generated: float = 0.0
    answered: float = 0.0

    def __add__(self, other: "Capacity") -> "Capacity":
        return Capacity(
            self.cache_tokens + other.cache_tokens,
            self.num_engines + other.num_engines,
            self.generated + other.generated,
            self.answered + other.answered,
        )

    def figures(self, max_num_seqs: int, max_model_len: int) -> JsonObject:
        """The figures of `/load`; empty if vLLM does not tell its cache."""
        if not self.num_engines:
            return {}
        found: JsonObject = {
            "max_sequences": max_num_seqs * self.num_engines,
            "kv_cache_tokens": self.cache_tokens,
        }
        if max_model_len:
            found["max_model_len"] = max_model_len
        if self.answered:
            found["output_tokens_each"] = round(self.generated / self.answered, 1)
        return found


UNKNOWN = Capacity()


def read_capacity(text: str) -> Capacity:
    """The capacity that the text tells; data-parallel engines have a cache each."""
    caches: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith(CACHE):
            told = dict(LABEL.findall(line))
            size, number = told.get("block_size", ""), told.get("num_gpu_blocks", "")
            if size.isdecimal() and number.isdecimal():
                caches[told.get("engine", "")] = int(size) * int(number)
    sums = {"vllm:generation_tokens_total": 0.0, "vllm:request_success_total": 0.0}
    for name, value in _read_values(text, sums):
        sums[name] += value
    return Capacity(sum(caches.values()), len(caches), *sums.values())
