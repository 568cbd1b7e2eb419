"""The figures of ng_view: what is counted over whole columns is what each row says."""

import math
import random
from array import array
from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest
from exported import line
from hypothesis import given
from hypothesis import strategies as st
from support import write_jsonl

from rollout_kit.analysis.view.alike import find_alike
from rollout_kit.analysis.view.app import Viewer
from rollout_kit.analysis.view.dataset import Dataset
from rollout_kit.analysis.view.figures import plots
from rollout_kit.analysis.view.query import Query

KINDS = st.sampled_from([0.0, 1.0, -0.5, 0.1, 1e9, 127.0, math.inf])


@given(st.lists(st.tuples(KINDS, KINDS, KINDS), min_size=1, max_size=60), st.integers(1, 40))
def test_rows_that_are_alike_are_counted_together(
    rows: list[tuple[float, float, float]], times: int
) -> None:
    rows = [(*row[:2], row[2] + at // 8) for at, row in enumerate(rows * times)]
    columns = [array(kind, each) for kind, each in zip("fdd", zip(*rows, strict=True), strict=True)]
    for held in (columns, columns[:2], columns[:1]):
        kept = list(zip(*held, strict=True))
        found = find_alike(held)
        assert Counter({kept[row]: number for row, number in found}) == Counter(kept)
        assert len(found) == len({kept[row] for row, _ in found})


def test_figures_of_different_and_of_equal_numbers_are_those_of_each_row(tmp_path: Path) -> None:
    chance, lines = random.Random(0), []
    for at in range(700):
        each = line(at // 4, at % 4, "x", chance.choice((None, 0.0, 1.0, -0.5)))
        each["usage"] = each["response"]["usage"] = {"output_tokens": chance.randrange(900)}
        each["rollout"] |= {"duration_s": chance.choice((None, chance.random())), "cost_usd": 0.25}
        each["rollout"]["started_at"] = f"2026-11-28T10:{at % 60:02}:00.{at:03}Z"
        lines.append(each)
    write_jsonl(tmp_path / "one.jsonl", lines)
    dataset = Dataset([str(tmp_path)], is_kept=False)
    dataset.update()
    viewer = Viewer(dataset, "")
    for where in ("", "reward != 0", "num_turns > 1 or output_tokens > 450"):
        ids = viewer.queries.wait(Query(where)).ids
        rows = [viewer.row(each) for each in ids]
        found = plots(dataset, ids)
        for name in ("reward", "duration_s", "cost_usd", "output_tokens"):
            values = [row[name] for row in rows if row[name] is not None]
            bins = found[name]["bins"]
            assert found[name]["missing"] == len(rows) - len(values)
            assert sum(number for *_, number in bins) == len(values)
            for low, high, number in bins:
                inside = [low == each if low == high else low <= each < high for each in values]
                assert sum(inside) == number
        (part,) = found["parts"]
        rewards = [row["reward"] for row in rows if row["reward"] is not None]
        durations = [row["duration_s"] for row in rows if row["duration_s"] is not None]
        assert part["tasks"] == len({row["task_id"] for row in rows if row["reward"] is not None})
        assert part["reward"] == pytest.approx(fmean(rewards))
        assert part["duration_s"] == pytest.approx(fmean(durations))
        (spans,) = found["over_time"]
        assert sum(mean * number for _, mean, number in spans) == pytest.approx(sum(rewards))
        known = {(row["output_tokens"], row["reward"]) for row in rows}
        points = Counter((row["output_tokens"], row["reward"]) for row in rows)
        assert {tuple(each[:2]): each[3] for each in found["length"]["points"]} == {
            each: points[each] for each in known if each[1] is not None
        }
