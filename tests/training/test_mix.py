"""Several environments feed one trainer, each with its share of the groups that are used."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import Bench, row, write_jsonl
from used_groups import use_groups

from rollout_kit.errors import ConfigError
from rollout_kit.rl import BufferPolicy
from rollout_kit.rl.mixing.shares import Shares

WEIGHTS = {"sums": 3.0, "games": 2.0, "rare": 1.0}

SIZES = {"sums": 4, "games": 40, "rare": 1}
"""Tasks of each: a small source is gone through often."""


@pytest.fixture
def mix(tmp_path: Path) -> Path:
    lines = ["sources:"]
    for name, size in SIZES.items():
        path = tmp_path / f"{name}.jsonl"
        write_jsonl(path, [row(f"{name} {number}") for number in range(size)])
        lines.append(f"  {name}: {{input_jsonl_fpath: {path}, weight: {WEIGHTS[name]}}}")
    lines[-1] = lines[-1][:-1] + ", reward_scale: 2.5, responses_create_params: {temperature: 0.3}}"
    path = tmp_path / "mix.yaml"
    path.write_text("\n".join(lines))
    return path


def feed(bench: Bench, mix: Path, steps: int, **policy: Any) -> list[Any]:
    """Collect until a trainer has used so many batches; the groups that it got."""
    bounds = BufferPolicy(batch=6, staleness=1, **policy)
    keys = {"num_repeats": 2, "mix": mix, "input_jsonl_fpath": None}
    status, seen = use_groups(bench, bounds, steps, **keys)
    assert status == 0
    return seen


def name_of(group: Any) -> str:
    return group.rollouts[0]["mix"]


def test_each_source_has_its_share_and_its_settings(bench: Bench, mix: Path) -> None:
    seen = feed(bench, mix, steps=20)
    assert len(seen) == 120 == len({group.key for group in seen})
    assert Counter(map(name_of, seen)) == {"sums": 60, "games": 40, "rare": 20}
    for group in seen:
        is_rare = name_of(group) == "rare"
        assert group.rewards == [2.5 if is_rare else 1.0] * 2
        assert [line["reward"] for line in group.rollouts] == [1.0] * 2  # the verdict stays
        params = group.rollouts[0]["responses_create_params"]
        assert params.get("temperature") == (0.3 if is_rare else None)
    said = bench.out.getvalue()
    assert "Mix: sums 60 of 120 groups used, 50.0% (asked: 50.0%); games 40 of 120" in said


def test_the_same_command_continues_with_the_shares(bench: Bench, mix: Path) -> None:
    seen = [*feed(bench, mix, steps=5), *feed(bench, mix, steps=5)]
    assert len({group.key for group in seen}) == len(seen) == 60
    counts = Counter(map(name_of, seen))
    assert all(abs(counts[name] - 60 * WEIGHTS[name] / 6) <= 3 for name in WEIGHTS), counts


def test_groups_that_are_lost_do_not_lower_a_share() -> None:
    """Every second group of one source is dropped."""
    shares = Shares({"sound": 1.0, "lossy": 1.0})
    for number in range(3000):
        name = shares.choose(["sound", "lossy"])
        shares.begin(f"{number}", name)
        shares.end(f"{number}", is_used=name == "sound" or number % 4 > 1)
    total = shares.used.total()
    assert abs(shares.used["lossy"] / total - 0.5) < 0.03
    assert shares.begun == shares.used


def test_a_slow_source_keeps_its_share() -> None:
    """Its groups are used long after they were begun."""
    shares, slow = Shares({"quick": 1.0, "slow": 3.0}), list[str]()
    for number in range(4000):
        name = shares.choose(["quick", "slow"])
        shares.begin(f"{number}", name)
        slow += [f"{number}"] if name == "slow" else []
        ready = slow.pop(0) if len(slow) > 100 else ""
        for key in (f"{number}" if name == "quick" else "", ready):
            if key:
                shares.end(key, is_used=True)
    assert abs(shares.used["slow"] / shares.used.total() - 0.75) < 0.03


@pytest.mark.parametrize(
    ("text", "keys", "why"),
    [
        ("sources: {}", {}, "sources"),
        ("sources: {a: {weight: 0, input_jsonl_fpath: sums.jsonl}}", {}, "weight"),
        ("sources: {a: {wheight: 1, input_jsonl_fpath: sums.jsonl}}", {}, "wheight"),
        (None, {"input_jsonl_fpath": "x.jsonl"}, "leave out input_jsonl_fpath"),
        (None, {"buffer": None}, r"add \+buffer"),
        (None, {"longest_first": True}, "longest_first has no effect"),
    ],
)
def test_what_is_no_mix_is_refused(
    bench: Bench, mix: Path, text: str | None, keys: dict[str, Any], why: str
) -> None:
    if text is not None:
        mix.write_text(text)
    given = {"buffer": "memory:?batch=6&staleness=1", "mix": mix, "input_jsonl_fpath": None, **keys}
    with pytest.raises((ConfigError, ValueError), match=why):
        asyncio.run(bench.collect(**given))


def test_a_row_that_is_no_task_is_named_with_its_file(bench: Bench, mix: Path) -> None:
    write_jsonl(bench.folder / "games.jsonl", [row("ok"), {"question": "?"}])
    given = {"buffer": "memory:?batch=6&staleness=1", "mix": mix, "input_jsonl_fpath": None}
    with pytest.raises(ConfigError, match=r"games\.jsonl:2: no responses_create_params object"):
        asyncio.run(bench.collect(**given))
