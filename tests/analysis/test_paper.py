"""Tables and figures of several runs on several environments, for a paper."""

import csv
import re
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support import skip_unless_installed, write_jsonl

from rollout_kit.analysis.comparison import compare_files, format_comparison
from rollout_kit.analysis.drawing import Whisker, draw_whiskers
from rollout_kit.analysis.metrics.paired import correct_holm, interval_of_mean
from rollout_kit.analysis.paper_tables import Table, latex_text, markdown_text
from rollout_kit.analysis.report import write_report
from rollout_kit.config.keys import CompareConfig, ReportConfig
from rollout_kit.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"


def line(agent: str, task: int, index: int, reward: float) -> dict[str, Any]:
    name = f"{task:016x}"
    info = {"task_id": name, "scope": "", "rollout_index": index, "settings": "s", "model": "m"}
    message = {"type": "message", "content": [{"type": "output_text", "text": "a"}]}
    return {
        "agent_ref": {"name": agent},
        "reward": reward,
        "rollout": {**info, "scores": []},
        "responses_create_params": {"input": "x"},
        "response": {"output": [message]},
    }


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for run, more in {"base": 0, "tuned_50%": 2, "rl": 4}.items():
        rows = [
            line(agent, task, index, float((task * 7 + index * 5 + shift) % 10 < 3 + more))
            for shift, agent in enumerate(("gsm8k", "order_desk"))
            for task in range(20)
            for index in range(4)
        ]
        write_jsonl(tmp_path / f"{run}.jsonl", rows)
    return tmp_path


def compare(*inputs: str, **keys: Any) -> str:
    command = CompareConfig.model_validate({"inputs": list(inputs), **keys})
    return format_comparison(compare_files(command))


FILES = ("base.jsonl", "tuned_50%.jsonl", "rl.jsonl")


def test_every_run_and_environment_is_in_each_table() -> None:
    printed = compare(*FILES, paper="paper")
    assert "Corrected for 2 comparisons (Holm): p" in printed
    assert "paper/rewards.tex" in printed and "paper/pass_at_k_gsm8k.pdf" in printed
    markdown = Path("paper/rewards.md").read_text()
    assert markdown.startswith("| run | gsm8k | order_desk |\n| --- | --- | --- |\n| base | 0.3")
    assert "95% confidence interval" in markdown
    with open("paper/rewards.csv") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["run"], row["environment"]) for row in rows] == [
        (run, agent) for run in ("base", "tuned_50%", "rl") for agent in ("gsm8k", "order_desk")
    ]
    assert {(row["tasks"], row["rollouts"]) for row in rows} == {("20", "80")}
    with open("paper/comparisons.csv") as stream:
        compared = list(csv.DictReader(stream))
    ps = [float(row["p"]) for row in compared]
    assert [float(row["p_holm"]) for row in compared] == correct_holm(ps)
    assert {row["test"] for row in compared} == {"paired t-test over tasks"}
    about = Path("paper/comparisons.md").read_text()
    assert "Test: paired t-test over tasks. p (Holm) is corrected for 4 comparisons." in about


def test_files_with_the_same_label_are_one_run() -> None:
    for run in ("base", "rl"):
        rows = Path(f"{run}.jsonl").read_text().splitlines(keepends=True)
        Path(f"{run}_a.jsonl").write_text("".join(rows[:80]))
        Path(f"{run}_b.jsonl").write_text("".join(rows[80:]))
    inputs = ["base_a.jsonl", "base_b.jsonl", "rl_a.jsonl", "rl_b.jsonl"]
    command = ReportConfig(inputs=inputs, paper=Path("p"), labels=["Base", "Base", "RL", "RL"])
    assert "p/rewards.svg" in write_report(command)
    by_label = Path("p/rewards.csv").read_text()
    compare("base.jsonl", "rl.jsonl", paper="q", labels=["Base", "RL"])
    assert by_label == Path("q/rewards.csv").read_text()
    assert Path("p/comparisons.csv").read_text() == Path("q/comparisons.csv").read_text()


def test_runs_with_other_agents_are_compared_on_all_tasks() -> None:
    write_jsonl(Path("one.jsonl"), [line("agent_1", task, 0, task % 2) for task in range(8)])
    write_jsonl(Path("two.jsonl"), [line("agent_2", task, 0, 1.0) for task in range(8)])
    compare("one.jsonl", "two.jsonl", paper="p")
    assert "| run | all tasks |" in Path("p/rewards.md").read_text()
    assert "McNemar's exact test" in Path("p/comparisons.md").read_text()
    assert not list(Path("p").glob("pass_at_k*"))


def test_latex_tables_are_well_formed() -> None:
    compare(*FILES, paper="paper")
    for path in Path("paper").glob("*.tex"):
        text = path.read_text()
        rows = re.search(r"\\toprule(.*)\\bottomrule", text, re.DOTALL)
        [spec] = re.findall(r"\\begin\{tabular\}\{(l+)\}", text)
        assert rows and all(
            len(re.split(r"(?<!\\)&", row)) == len(spec)
            for row in re.sub(r"\\midrule", "", rows[1]).split(r" \\")[:-1]
        )
        assert r"tuned\_50\%" in text and "\\end{table}\n" in text


def test_latex_passes_a_parser() -> None:
    skip_unless_installed("pylatexenc")
    from pylatexenc.latexwalker import LatexEnvironmentNode, LatexWalker

    hard = Table(["a_b", "[c]"], [["#1 & {x} ~ ^ \\ $ %", "< 1 · –"]], "95% of $", ((), ()))
    compare(*FILES, paper="paper")
    texts = [path.read_text() for path in Path("paper").glob("*.tex")]
    for text in (*texts, latex_text(hard, "t")):
        nodes, _, _ = LatexWalker(text, tolerant_parsing=False).get_latex_nodes()
        [table] = [node for node in nodes if isinstance(node, LatexEnvironmentNode)]
        assert table.environmentname == "table"


def test_markdown_cells_hold_any_text() -> None:
    text = markdown_text(Table(["a|b"], [["x\ny <b>"]], "", ((), ())))
    assert text.splitlines()[0] == "| a\\|b |" and text.splitlines()[2] == "| x y &lt;b> |"


def test_figures_have_axes_intervals_and_a_series_for_each_run() -> None:
    compare(*FILES, paper="paper")
    rewards = ElementTree.parse("paper/rewards.svg").getroot()
    texts = ["".join(each.itertext()) for each in rewards.iter(f"{SVG}text")]
    assert "Mean reward over tasks, with 95 % interval" in texts
    assert {"0", "0.5", "1", "gsm8k · rl" * 2} <= set(texts)
    kinds = [each.get("class") for each in rewards.iter(f"{SVG}line")]
    assert kinds.count("axis") == 1
    assert [kinds.count(f"line-{number}") for number in range(3)] == [2, 2, 2]
    at_k = ElementTree.parse("paper/pass_at_k_gsm8k.svg").getroot()
    texts = ["".join(each.itertext()) for each in at_k.iter(f"{SVG}text")]
    assert {"k (rollouts of a task)", "pass@k (share of tasks)"} <= set(texts)
    assert len(list(at_k.iter(f"{SVG}polyline"))) == 3
    style = "".join(each.text or "" for each in at_k.iter(f"{SVG}style"))
    assert ".line-2{" in style and not re.search(r"url|@import|var\(", style)


def test_a_pdf_has_the_texts_of_the_figure_and_right_offsets() -> None:
    compare(*FILES, paper="paper")
    raw = Path("paper/rewards.pdf").read_bytes()
    assert raw.startswith(b"%PDF-1.4") and raw.endswith(b"%%EOF\n")
    begin = int(re.findall(rb"startxref\n(\d+)", raw)[0])
    for number, place in enumerate(re.findall(rb"(\d{10}) 00000 n", raw[begin:]), 1):
        assert raw[int(place) :].startswith(b"%d 0 obj" % number)
    [packed] = re.findall(rb"stream\n(.*)\nendstream", raw, re.DOTALL)
    drawn = zlib.decompress(packed).decode("cp1252")
    assert "(Mean reward over tasks, with 95 % interval) Tj" in drawn
    assert "(gsm8k · rl) Tj" in drawn


def test_what_cannot_be_written_is_refused_before_anything_is() -> None:
    with pytest.raises(ConfigError, match="labels: 1 for 2 files"):
        compare("base.jsonl", "rl.jsonl", paper="p", labels=["x"])
    with pytest.raises(ConfigError, match=r"add \+paper="):
        compare("base.jsonl", "rl.jsonl", labels=["x", "y"])
    with pytest.raises(ConfigError, match="has no 'ж'"):
        compare("base.jsonl", "rl.jsonl", paper="p", labels=["x", "ж"])
    assert not Path("p").exists()


def test_holm_is_the_step_down_method() -> None:
    stats = pytest.importorskip("statsmodels.stats.multitest")
    for ps in ([0.01, 0.04, 0.03, 0.005], [0.5, 0.9], [0.02], [0.0, 1.0, 0.5, 0.5]):
        expected = stats.multipletests(ps, method="holm")[1]
        assert correct_holm(ps) == pytest.approx(list(expected))
    assert correct_holm([None, 0.03, None, 0.02]) == [None, 0.04, None, 0.04]
    assert correct_holm([]) == []


def test_values_that_are_all_alike_have_wilson_s_interval() -> None:
    low, high = interval_of_mean([1.0] * 20) or (0, 0)
    assert 0.8 < low < 0.9 and high == pytest.approx(1)
    assert interval_of_mean([3.0] * 20) is None and interval_of_mean([1.0]) is None


def test_rewards_beyond_one_have_a_scale_of_their_own() -> None:
    drawn = draw_whiskers([Whisker("a", -3.2, (-4.1, -2)), Whisker("b", 12.5, (11, 14))], "reward")
    ticks = [each.text for each in drawn.shapes if hasattr(each, "text")]
    assert "-5" in ticks and "15" in ticks
    assert all(290 <= each.x <= 580 for each in drawn.shapes if hasattr(each, "radius"))
