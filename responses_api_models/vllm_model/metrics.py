"""The Prometheus metrics of vLLM that show how busy an engine is."""

from collections.abc import Callable, Iterable

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
    for line in text.splitlines():
        if not line.startswith("vllm:"):
            continue
        name, _, rest = line.partition("{")
        if name not in WANTED:
            continue
        try:
            found.setdefault(name, []).append(float(rest.rpartition("}")[2].split()[0]))
        except (ValueError, IndexError):
            continue
    return {WANTED[name][0]: WANTED[name][1](values) for name, values in found.items()}
