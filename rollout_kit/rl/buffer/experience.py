"""The experience buffer of the documents: single experiences, sampled at random.

It has no groups, versions or acks; `open_buffer` has all of them. It is a window on the last
`max_size` experiences, for code that was written for that class.
"""

import random
from collections import deque
from typing import Any

from ...types import JsonObject


class ExperienceBuffer:
    """Keeps the last `max_size` experiences in memory."""

    def __init__(self, max_size: int = 10000) -> None:
        if max_size < 1:
            raise ValueError(f"max_size: must be at least 1, got {max_size}")
        self.buffer: deque[JsonObject] = deque(maxlen=max_size)

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def max_size(self) -> int:
        return self.buffer.maxlen or 0

    def add(
        self, prompt: Any, response: Any, reward: float, log_prob: Any, ref_log_prob: Any
    ) -> None:
        """Add an experience; beyond `max_size` the oldest one goes."""
        self.buffer.append(
            {
                "prompt_ids": prompt,
                "response_ids": response,
                "reward": reward,
                "old_log_prob": log_prob,
                "ref_log_prob": ref_log_prob,
            }
        )

    def sample(self, batch_size: int) -> list[JsonObject]:
        """Experiences drawn at random, with replacement."""
        if not self.buffer:
            raise ValueError("sample: the buffer is empty: add experiences first")
        return random.choices(self.buffer, k=batch_size)

    def clear(self) -> None:
        """Forget all experiences."""
        self.buffer.clear()
