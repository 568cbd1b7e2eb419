"""Reading rollouts back, lazily: a file of any size takes the memory of one line."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, how_to_install
from ..types import Rollout
from .compact import Keys
from .groups.rewards import GroupRewards, find_group_rewards
from .input import number_lines
from .labels import Labels, find_labels
from .lines import key_of, kind_of, refuse_newer, rollout_of
from .scan import parse_line, parse_newer

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-not-found]


class Rollouts:
    """The rollouts of one or several files, each key once, with the scores of their groups and
    their labels. Other lines are skipped. Iterating raises ConfigError if a file cannot be read.

    Example:

        print([rollout.reward for rollout in rk.Rollouts("rollouts.jsonl")])
    """

    def __init__(self, *paths: str | Path) -> None:
        self.paths = [Path(path).expanduser() for path in paths]

    def __iter__(self) -> Iterator[Rollout]:
        """In the order of the files; ConfigError if one cannot be read, OutputError if a newer
        version wrote a line."""
        seen = Keys()
        for path in self.paths:
            rewards, labels = find_group_rewards(path), find_labels(path)
            for number, raw in number_lines(path):
                rollout = parse_rollout(raw, rewards, labels)
                if rollout is None:
                    if (line := parse_newer(raw)) is not None:
                        raise refuse_newer(path, number, line, is_output=False)
                elif seen.add(rollout.key):
                    yield rollout

    def __repr__(self) -> str:
        return f"Rollouts({', '.join(map(str, self.paths))})"

    def to_pandas(self, limit: int | None = None) -> "DataFrame":
        """One row per rollout: identity, reward, the verifier's fields, usage, cost, seconds, text.

        ConfigError if pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-not-found]
        except ImportError:
            raise ConfigError(f"to_pandas needs pandas: {how_to_install('pandas')}") from None
        return pandas.DataFrame([_flatten(each) for each in islice(self, limit)])


def load(*paths: str | Path) -> Rollouts:
    """The rollouts of JSONL files that collections wrote; `.gz` and `.zst` too. ConfigError without
    a path.

    Example:

        for rollout in rk.load("rollouts.jsonl"):
            print(rollout.reward, rollout.text)
    """
    if not paths or not all(isinstance(path, str | Path) and path for path in paths):
        raise ConfigError(
            "load: expected the paths of files of rollouts, as in load('a.jsonl', 'b.jsonl'), got"
            f" {', '.join(map(repr, paths)) or 'none'}"
        )
    return Rollouts(*paths)


def parse_rollout(
    raw: bytes, rewards: GroupRewards | None, labels: Labels | None
) -> Rollout | None:
    """A line with its group's score and its labels; None if it is no rollout with a response."""
    line = parse_line(raw)
    response = line.get("response") if line else None
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        return None
    assert line is not None
    if kind_of(line, "rollout") != "rollout" or (key := key_of(line)) is None:
        return None
    group = rewards.of(key) if rewards else None
    return rollout_of(line, group, labels.of(key) if labels else ())


def _flatten(rollout: Rollout) -> dict[str, Any]:
    info = rollout.info
    scores = {name: rollout.line.get(name) for name in info.scores}
    return {
        **info.key._asdict(),
        "reward": rollout.reward,
        **({"group_reward": rollout.group_reward} if rollout.group else {}),
        **scores,
        "model": info.model,
        "num_turns": info.num_turns,
        "num_tool_calls": info.num_tool_calls,
        "input_tokens": info.input_tokens,
        "output_tokens": info.output_tokens,
        "cost_usd": info.cost_usd,
        "duration_s": info.duration_s,
        "text": rollout.text,
    }
