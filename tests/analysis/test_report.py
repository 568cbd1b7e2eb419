"""ng_report: the page holds the figures of the metrics, and no markup of a model."""

import re
from collections.abc import Callable
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from command import as_function
from exported import line, write_scored
from support import write_jsonl
from test_view import failure

from rollout_kit.analysis.drawing import Whisker, draw_whiskers
from rollout_kit.analysis.metrics.aggregate import Aggregate
from rollout_kit.store.lines import rollout_of

command = as_function("ng_report")
view = as_function("ng_view")

HOSTILE = "</pre><script>alert(1)</script><b>bold</b>"

ANSWERS = [
    line(1, 0, "It is one.", 1.0),
    line(1, 1, HOSTILE, 0.0, answer=HOSTILE),
    line(2, 0, "It is", 0.0, cut="max_output_tokens"),
    line(2, 1, "It is two.", 1.0),
    line(3, 0, "It is three.", None),
]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)
        if tag not in ("meta", "line", "circle", "rect", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        elif tag not in ("line", "circle", "rect", "polyline"):
            self.open.append(f"unexpected /{tag}")


def write(*words: str, main: Callable[[list[str]], None] = command) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(str(ended.value.code))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_jsonl(tmp_path / "a.jsonl", ANSWERS)
    write_jsonl(tmp_path / "a.d/failures.jsonl", [failure(1, 0), failure(9, 0), failure(9, 0)])
    starts = [{"git": {"commit": c * 40, "dirty": c == "b"}} for c in "aab"]
    write_jsonl(tmp_path / "a.d/runs.ndjson", [*starts, {"event": "end"}, {"git": None}])
    write_jsonl(tmp_path / "b.jsonl", [line(task, 0, "It is.", 1.0) for task in (1, 2)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_says_what_the_rollouts_say(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert write("a.jsonl", "b.jsonl", "+output_fpath=out/page.html", "+title=A <title>") == 0
    assert "7 rollouts of 2 files" in capsys.readouterr().out
    page = (results / "out/page.html").read_text()
    expected = Aggregate()
    for each in ANSWERS:
        expected.add(rollout_of(each))
    low, high = expected.interval("reward") or (0, 0)
    assert f"<b>{expected.numbers['reward'].mean:.4f}</b>" in page
    assert f"{low:.4f} – {high:.4f}" in page
    hat = expected.pass_hat_k()
    below, above = hat["pass_hat_k_intervals"]["2"]
    assert f"{hat['pass_hat_k']['2']:.4f} [{below:.4f}, {above:.4f}]" in page
    assert "1 without a verdict, 1 failed" in page  # the key with a result has not failed
    assert "ServerError" in page and "it is down" in page and "+only=…" in page
    assert "common tasks" in page
    assert "A &lt;title&gt;" in page
    assert "aaaaaaaaaaaa, bbbbbbbbbbbb (changed)<" in page
    assert "maj@k: " in page and "Cut off: " in page  # terms are explained
    written = re.search(r"Written (\S+ \S+)\. Times are UTC", page)
    assert written and datetime.fromisoformat(written[1])


def test_lines_that_are_left_out_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = write_jsonl(tmp_path / "a.jsonl", ANSWERS), tmp_path / "page.html"
    with path.open("ab") as stream:
        stream.write(b'{"other": 1}\nno JSON\n' + path.read_bytes().splitlines(True)[0])
        stream.write(b'{"reward": 1.0, "rollo')
    assert write(str(path), f"+output_fpath={page}") == 0
    said, shown = capsys.readouterr().out, page.read_text()
    assert f"{page}: 5 rollouts of 1 file\n" in said
    for what in (
        "left out: 2 (lines that no collection wrote)",
        "left out: 1 (rollouts with the key of an earlier one)",
        "left out: 1 (a last line that is cut off)",
    ):
        assert f"{path}: {what}\n" in said and what in shown


def test_a_report_on_the_rollouts_that_a_filter_keeps(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert write("a.jsonl", "+where=reward < 1 and task_index > 0", "+output_fpath=p.html") == 0
    assert "2 rollouts of 1 file" in capsys.readouterr().out
    page = (results / "p.html").read_text()
    assert "Rollouts where <code>reward &lt; 1 and task_index &gt; 0</code>" in page
    assert "failed" not in page and "It is two." not in page
    assert write("a.jsonl", "+where=rewrad < 1") == 1
    assert "did you mean 'reward'?" in capsys.readouterr().err


def test_failures_without_a_rollout_make_a_page(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (results / "a.jsonl").unlink()
    assert write("a.jsonl") == 0
    assert "0 rollouts of 1 file\n" in capsys.readouterr().out
    assert "2 failed" in (results / "report.html").read_text()


def test_a_model_s_output_is_text(results: Path) -> None:
    assert write("a.jsonl") == 0
    page = (results / "report.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not {"script", "iframe", "img", "a"} & set(tags.found)
    assert "&lt;script&gt;alert(1)" in page
    assert "default-src 'none'" in page and not re.search(r'(src|href)="', page)


def test_rewards_of_any_range_are_counted(results: Path) -> None:
    write_jsonl(results / "c.jsonl", [line(at, 0, "x", at * 7.5 - 20) for at in range(50)])
    assert write("c.jsonl") == 0
    assert "<svg" in (results / "report.html").read_text()


def test_the_rewards_of_groups_are_stated_and_compared(tmp_path: Path) -> None:
    ones = [line(task, 0, "One.", 1.0) for task in range(6)]
    inputs = [
        write_scored(tmp_path / f"{name}.jsonl", ones, lambda each, more=more: more)
        for name, more in (("a", 0.25), ("b", 0.75))
    ]
    target = tmp_path / "report.html"
    words = ",".join(map(str, inputs))
    assert write(f"+inputs=[{words}]", f"+output_fpath={target}") == 0
    page = target.read_text()
    assert "<th>group reward</th>" in page and "0.2500" in page and "0.7500" in page
    assert "No difference can be seen: 6 of 6 against 6" in page
    assert "Group reward: <b>The second is better: 0.2500 against 0.7500" in page
    for each in ones:
        del each["reward"]
    for name, more in (("a", 0.25), ("b", 0.75)):
        write_scored(tmp_path / f"{name}.jsonl", ones, lambda each, more=more: more)
    assert write(f"+inputs=[{words}]", f"+output_fpath={target}") == 0
    page = target.read_text()
    assert "without a verdict" not in page and "in common" not in page
    assert "Group reward: <b>The second is better: 0.2500 against 0.7500" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a folder or files of rollouts"),
        (["none.jsonl"], "no file or folder none.jsonl"),
        (["empty.jsonl"], "no rollout is in it"),
    ],
)
def test_what_cannot_be_reported_is_said_in_one_line(
    results: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (results / "empty.jsonl").touch()
    assert write(*words) == 1
    assert said in capsys.readouterr().err
    assert not (results / "report.html").exists()


def test_only_a_page_is_replaced_by_a_page(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = next(results.glob("*.jsonl"))
    before = source.read_bytes()
    for main, key in ((command, "output_fpath"), (view, "static")):
        for target, said in (
            (source, "exists, and is no page: remove it"),
            (source / "page.html", "cannot write"),
        ):
            assert write(str(source), f"+{key}={target}", main=main) == 1
            assert said in capsys.readouterr().err
        page = results / "page.html"
        assert write(str(source), f"+{key}={page}", main=main) == 0, page.exists()
    assert source.read_bytes() == before


def test_files_of_one_name_and_of_different_agents_are_compared(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    folders = [tmp_path / name for name in ("before", "after")]
    for reward, folder in enumerate(folders):
        folder.mkdir()
        lines = [
            {**line(task, at, "a", reward), "agent_ref": {"name": folder.name}}
            for task in range(6)
            for at in range(2)
        ]
        write_jsonl(folder / "rollouts.jsonl", lines)
    assert write(*map(str, folders), f"+output_fpath={target}") == 0
    page = target.read_text()
    for folder in folders:
        assert f"pass@k {folder}/rollouts.jsonl" in page
        assert f"pass^k {folder}/rollouts.jsonl" in page
    assert "The second is better" in page and "no verified task" not in page


def test_fields_of_odd_types_are_no_obstacle(results: Path) -> None:
    odd = [line(1, 0, "a", 1.0), line(2, 0, "b", 0.0), line(3, 0, "c", 1.0)]
    odd[0]["rollout"]["model"] = 7
    odd[1]["rollout"]["finish_reason"] = ["stop"]
    odd[2]["responses_create_params"] = [1]
    write_jsonl(results / "odd.jsonl", odd)
    assert write("odd.jsonl") == 0
    assert "7, m" in (results / "report.html").read_text()


def test_labels_that_are_cut_keep_what_differs() -> None:
    names = [
        f"{file}/rollouts.jsonl · vote_simple_agent · long_{arm}" for file in "xy" for arm in "ab"
    ]
    page = str(draw_whiskers([Whisker(f"results/{name}", 0.5, None) for name in names]))
    shown = re.findall(r">([^<>]*…[^<>]*)<", page)
    assert len(set(shown)) == 4 and all(len(each) <= 44 for each in shown)
