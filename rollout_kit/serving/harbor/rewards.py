"""The numbers that a verifier of a folder writes, and the reward that they make."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

REWARD = "reward"

Rewards = dict[str, float]


def parse_rewards(text: bytes | None, json: bytes | None) -> Rewards:
    """The numbers in `reward.json`, else the one in `reward.txt`; ValueError if there are none."""
    if json is not None:
        try:
            found: Any = orjson.loads(json)
        except orjson.JSONDecodeError:
            raise ValueError("reward.json is not JSON") from None
        named = found if isinstance(found, dict) else {REWARD: found}
        return {str(name): _read_number(value, "reward.json") for name, value in named.items()}
    if text is None:
        raise ValueError("the tests wrote neither reward.txt nor reward.json")
    try:
        number: Any = float(text.decode())
    except ValueError:
        number = None
    return {REWARD: _read_number(number, "reward.txt")}


def _read_number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{where} holds no number")
    return float(value)


def choose_reward(rewards: Mapping[str, float]) -> float:
    """The number that is called reward; without it the mean of all."""
    if REWARD in rewards or not rewards:
        return rewards.get(REWARD, 0.0)
    return sum(rewards.values()) / len(rewards)


def join_steps(steps: Sequence[Rewards | None], strategy: str | None) -> Rewards:
    """The rewards of all steps that were verified: of the last one, or the mean of each number."""
    if strategy == "final":
        return (steps[-1] if steps else None) or {}
    found = [each for each in steps if each is not None]
    names = {name: None for each in found for name in each}
    return {name: sum(each.get(name, 0.0) for each in found) / len(found) for name in names}


def is_enough(rewards: Rewards | None, wanted: float | Mapping[str, float] | None) -> bool:
    """Whether a step has the reward without which the later ones are not tried."""
    if wanted is None:
        return True
    bounds = wanted if isinstance(wanted, Mapping) else {REWARD: wanted}
    return all((rewards or {}).get(name, -math.inf) >= bound for name, bound in bounds.items())
