"""The few of vLLM's Prometheus figures that say how busy an engine is."""

from collections.abc import Callable, Iterable

WANTED: dict[str, tuple[str, Callable[[Iterable[float]], float]]] = {
    "vllm:num_requests_running": ("engine_running", sum),
    "vllm:num_requests_waiting": ("engine_waiting", sum),
    "vllm:kv_cache_usage_perc": ("kv_cache", max),
    "vllm:num_preemptions_total": ("preemptions", sum),
}
"""vLLM's name → ours, and how the figures of data-parallel engines come together."""


def read(text: str) -> dict[str, float]:
    """Those that the text has, by our names; `kv_cache` is a share of 1."""
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
