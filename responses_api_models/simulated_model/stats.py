"""Statistics for `/stats`, and the same under vLLM's names for `/metrics`."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rollout_kit.types import JsonObject

BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
BOUNDS_S += (10.0, 20.0, 40.0, 80.0, 160.0)
"""Upper bounds of the histograms' buckets."""


class Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(BOUNDS_S, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        running = 0
        for bound, count in zip((*BOUNDS_S, "+Inf"), self.counts, strict=True):
            running += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {running}'
        yield f"{name}_sum{{{labels}}} {self.total:.6f}"
        yield f"{name}_count{{{labels}}} {running}"


USED = 0.85
"""Share of the key-value cache that full slots use: the limiter would cut at a full one."""

BLOCKS, BLOCK_SIZE = 2048, 16
"""The cache of one slot in `/metrics`, in blocks of so many tokens."""


@dataclass(slots=True)
class Stats:
    """Statistics since the start or the last reset. Times are of a monotonic clock."""

    model: str
    num_slots: int | None = None
    num_requests: int = 0
    in_flight: int = 0
    peak: int = 0
    by_path: Counter[str] = field(default_factory=Counter)
    by_status: Counter[str] = field(default_factory=Counter)
    by_fault: Counter[str] = field(default_factory=Counter)
    by_end: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    generated_tokens: int = 0
    first_at: float | None = None
    last_at: float = 0.0
    _area: float = 0.0
    _changed_at: float = 0.0
    first_token_s: Histogram = field(default_factory=Histogram)
    whole_s: Histogram = field(default_factory=Histogram)

    def begin(self, path: str, now: float) -> None:
        if self.first_at is None:
            self.first_at = self._changed_at = now
        self.num_requests += 1
        self.by_path[path] += 1
        self._change(+1, now)

    def end(self, now: float, outcome: str, fault: str = "") -> None:
        """A request has ended; `outcome` is its status, or a word if none was sent."""
        self.by_status[outcome] += 1
        if fault:
            self.by_fault[fault] += 1
        self._change(-1, now)

    def answered(self, prompt: int, generated: int, reason: str) -> None:
        self.prompt_tokens += prompt
        self.generated_tokens += generated
        self.by_end[reason] += 1

    def reset(self) -> None:
        """Reset everything except the requests in flight."""
        fresh = Stats(self.model, self.num_slots, in_flight=self.in_flight, peak=self.in_flight)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))

    def _change(self, by: int, now: float) -> None:
        if self.first_at is None:  # it was reset while this one was in flight
            self.first_at = self._changed_at = now
        self._area += self.in_flight * (now - self._changed_at)
        self._changed_at = self.last_at = now
        self.in_flight += by
        self.peak = max(self.peak, self.in_flight)

    @property
    def running(self) -> int:
        return self.in_flight if self.num_slots is None else min(self.in_flight, self.num_slots)

    @property
    def waiting(self) -> int:
        return self.in_flight - self.running

    @property
    def cache_use(self) -> float:
        return USED * self.running / self.num_slots if self.num_slots else 0.0

    def engine_figures(self) -> JsonObject:
        """Metrics that vLLM would report; empty if the concurrency is unlimited."""
        if not self.num_slots:
            return {}
        return {
            "kv_cache": round(self.cache_use, 4),
            "engine_running": self.running,
            "engine_waiting": self.waiting,
            "preemptions": 0,
            "max_sequences": self.num_slots,
        }

    def report(self, now: float) -> JsonObject:
        began = self.first_at
        span_s = (self.last_at - began) if began is not None else 0.0
        return {
            "requests": self.num_requests,
            "by_path": dict(self.by_path),
            "by_status": dict(self.by_status),
            "by_fault": dict(self.by_fault),
            "num_429": self.by_status["429"],
            "in_flight": {
                "now": self.in_flight,
                "peak": self.peak,
                "mean": round(self._area / span_s, 3) if span_s else 0.0,
            },
            "tokens": {"prompt": self.prompt_tokens, "generated": self.generated_tokens},
            "first_at": None if began is None else time.time() - (now - began),
            "last_at": None if began is None else time.time() - (now - self.last_at),
            "span_s": round(span_s, 6),
        }

    def metrics(self) -> str:
        """Prometheus text with the names of vLLM's metrics."""
        labels = f'engine="0",model_name="{self.model}"'
        single: list[tuple[str, str, float]] = [
            ("num_requests_running", "gauge", self.running),
            ("num_requests_waiting", "gauge", self.waiting),
            ("kv_cache_usage_perc", "gauge", round(self.cache_use, 4)),
            ("num_preemptions_total", "counter", 0),
            ("prefix_cache_queries_total", "counter", 0),
            ("prefix_cache_hits_total", "counter", 0),
            ("prompt_tokens_total", "counter", self.prompt_tokens),
            ("generation_tokens_total", "counter", self.generated_tokens),
        ]
        lines = []
        if self.num_slots:
            blocks = f'block_size="{BLOCK_SIZE}",num_gpu_blocks="{BLOCKS * self.num_slots}"'
            lines += ["# TYPE vllm:cache_config_info gauge"]
            lines += [f'vllm:cache_config_info{{{blocks},engine="0"}} 1.0']
        for name, kind, value in single:
            family = name.removesuffix("_total")
            lines += [f"# TYPE vllm:{family} {kind}", f"vllm:{name}{{{labels}}} {value}"]
        lines.append("# TYPE vllm:request_success counter")
        lines += [
            f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} '
            f"{self.by_end[reason]}"
            for reason in ("stop", "length", "abort")
        ]
        for name, histogram in (
            ("time_to_first_token_seconds", self.first_token_s),
            ("e2e_request_latency_seconds", self.whole_s),
        ):
            lines.append(f"# TYPE vllm:{name} histogram")
            lines += histogram.lines(f"vllm:{name}", labels)
        return "\n".join(lines) + "\n"
