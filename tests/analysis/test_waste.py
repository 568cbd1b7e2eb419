"""What became of the tokens of a training."""

from collections import Counter
from typing import Any

import pytest
from support import Bench, asked, read_jsonl, row, write_jsonl
from used_groups import use_groups

from rollout_kit.analysis.length_bias import LengthBias
from rollout_kit.analysis.waste import measure_waste
from rollout_kit.api.testing import ScriptedModel
from rollout_kit.commands import report
from rollout_kit.rl import BufferPolicy


@pytest.fixture
def trained(bench: Bench) -> Bench:
    """Four tasks: of two the rewards differ, one is always solved, and one fails."""
    begun = Counter[str]()

    def answer(params: dict[str, Any]) -> str:
        said = asked(params)
        begun[said] += 1
        if said == "broken":
            raise ValueError("no answer")
        return said if said == "solved" or begun[said] % 2 else "no"

    bench.model = ScriptedModel(answer)
    rows = [row("mixed a"), row("solved"), row("broken"), row("mixed b")]
    keys = {"num_repeats": 2, "stop_early": False, "max_attempts": 1, "epochs": None}
    use_groups(bench, BufferPolicy(batch=1, staleness=0), 3, rows, **keys)
    return bench


def test_each_rollout_counts_for_one_cause(trained: Bench) -> None:
    path = trained.folder / "rollouts.jsonl"
    waste = measure_waste(path, trained.lines("failures"))
    assert waste is not None
    found = {cause: spent.rollouts for cause, spent in waste.causes.items()}
    assert found["trained on"] == 4 and found["zero variance"] == 2 and found["failed"] >= 2
    total = sum(number for cause, number in found.items() if cause != "failed")
    assert total == len(trained.lines())
    shares = [waste.share_of(cause) for cause in waste.causes]
    assert sum(shares) == pytest.approx(1)


def test_what_a_buffer_dropped_has_its_reason(trained: Bench) -> None:
    acks = trained.folder / "rollouts.d/acks.jsonl"
    lines = read_jsonl(acks)
    write_jsonl(acks, [{**lines[0], "reason": "stale"}, *lines[1:]])
    waste = measure_waste(trained.folder / "rollouts.jsonl")
    assert waste is not None and waste.causes["stale"].rollouts == 2


def test_the_lengths_of_what_is_left_out_are_compared(trained: Bench) -> None:
    path, acks = trained.folder / "rollouts.jsonl", trained.folder / "rollouts.d/acks.jsonl"
    assert getattr(measure_waste(path), "lengths") is None  # noqa: B009 (nothing is left out)
    late, *others = read_jsonl(acks)
    write_jsonl(acks, [{**late, "reason": "stale"}, *others])
    lines = trained.lines()
    for line in lines:
        key = f"{line['rollout']['task_id']}"
        line["usage"] = {"output_tokens": 30 if key in late["key"] else 10, "input_tokens": 1}
    write_jsonl(path, lines)
    waste = measure_waste(path)
    assert waste is not None and waste.lengths is not None
    kept, left_out = waste.lengths.kept, waste.lengths.others
    assert (left_out.number, left_out.mean, left_out.p95) == (2, 30, 30)
    assert (kept.number, kept.mean, kept.p50) == (len(lines) - 2, 10, 10)
    mean = (2 * 30 + 10 * kept.number) / len(lines)
    assert waste.lengths.bias == pytest.approx(10 / mean - 1)
    page = trained.folder / "report.html"
    report.main([f"{path}", f"+output_fpath={page}"])
    assert f"used are {1 - 10 / mean:.1%} shorter than all" in page.read_text()


def test_percentiles_of_lengths() -> None:
    found = LengthBias.of(range(1, 102), [1000])
    assert found is not None and (found.kept.mean, found.kept.p50, found.kept.p95) == (51, 51, 96)
    assert str(found.kept) == "mean 51, p50 51, p95 96"
    assert LengthBias.of([], [1]) is LengthBias.of([1], []) is None


def test_the_report_shows_it(trained: Bench) -> None:
    page = trained.folder / "report.html"
    report.main([f"{trained.folder}/rollouts.jsonl", f"+output_fpath={page}"])
    text = page.read_text()
    assert "What the tokens went to" in text and "groups that changed the policy" in text


def test_an_output_without_a_trainer_has_no_such_section(bench: Bench) -> None:
    import asyncio

    asyncio.run(bench.collect([row("a")]))
    assert measure_waste(bench.folder / "rollouts.jsonl") is None
