"""A line per run in a CSV file of the user's, and never a line in anybody else's."""

import csv
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support import Bench, row, write_jsonl
from virtual_time import VirtualTime

from rollout_kit.api.testing import ScriptedModel, run_virtual
from rollout_kit.commands.throughput_log import COLUMNS, HEADER, append_line, check_log
from rollout_kit.config.keys import CollectConfig
from rollout_kit.errors import ConfigError

ROWS = [row("a"), row("b"), row("c", expected="something else")]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def config(path: Path, **keys: object) -> CollectConfig:
    given = {"throughput_log": path, "output_jsonl_fpath": path.parent / "rollouts.jsonl", **keys}
    return CollectConfig.model_validate(given)


def test_each_run_adds_its_own_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.folder / "new" / "log.csv"
    bench.model = ScriptedModel(lambda params: params["input"][-1]["content"], delay_s=10)
    time = VirtualTime(monkeypatch)
    began = datetime.now(UTC).replace(microsecond=0)
    assert time.run(bench.collect(ROWS, throughput_log=log, num_samples_in_parallel=7)) == 0
    ended = datetime.now(UTC)
    assert time.run(bench.collect(num_repeats=3, throughput_log=log)) == 0
    assert time.run(bench.collect(num_repeats=3, throughput_log=log)) == 0
    assert log.read_bytes().startswith(HEADER) and log.read_bytes().count(HEADER) == 1
    first, second, third = read(log)
    assert (first["rollouts"], second["rollouts"], third["rollouts"]) == ("3", "6", "0")
    assert float(first["mean_reward"]) == pytest.approx(2 / 3, abs=1e-3)
    assert third["mean_reward"] == third["bottleneck"] == ""
    assert (first["parallelism"], first["failed"]) == ("7", "0")
    assert first["output"].endswith("rollouts.jsonl") and first["bottleneck"]
    at = datetime.fromisoformat(first["date"])
    assert at.tzinfo == UTC and began <= at <= ended
    tokens = sum(line["usage"]["total_tokens"] for line in bench.lines()[:3])
    seconds = float(first["seconds"])
    assert seconds == pytest.approx(10, rel=0.01)
    assert tokens and float(first["tokens_per_s"]) * seconds == pytest.approx(tokens, rel=0.01)
    assert float(first["rollouts_per_s"]) * seconds == pytest.approx(3, rel=0.01)
    written = sum(line["usage"]["output_tokens"] for line in bench.lines()[:3])
    assert float(first["output_tokens_per_s"]) * seconds == pytest.approx(written, rel=0.01)


def test_a_file_with_other_columns_is_left_as_it_is_and_said_before_the_first_request(
    tmp_path: Path,
) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    (tmp_path / "mine.csv").write_text("date,who\n2024-01-01,me")
    argv = [
        "+config_paths=[configs/quickstart.yaml]",
        "+input_jsonl_fpath=tasks.jsonl",
        "+output_jsonl_fpath=rollouts.jsonl",
        "+throughput_log=mine.csv",
    ]
    code = "from rollout_kit.commands import main; main('ng_collect_rollouts')"
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1 and not (tmp_path / "rollouts.jsonl").exists()
    assert "throughput_log=mine.csv: the file begins with other columns" in done.stderr
    assert "date,who" in done.stderr and ",".join(COLUMNS) in done.stderr
    assert (tmp_path / "mine.csv").read_text() == "date,who\n2024-01-01,me"


def test_a_file_that_is_exchanged_meanwhile_is_left_as_it_is(bench: Bench) -> None:
    log = bench.folder / "log.csv"
    log.write_text("somebody,else's\n")
    assert run_virtual(bench.collect(ROWS, throughput_log=log)) == 0
    assert log.read_text() == "somebody,else's\n"
    assert "warning: throughput_log=" in bench.out.getvalue() and len(bench.lines()) == 3


@pytest.mark.parametrize("name", ["", "tasks.jsonl/log.csv", "rollouts.jsonl", "/dev/null"])
def test_a_place_where_no_log_can_be_is_refused(tmp_path: Path, name: str) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    given = config(tmp_path / name, output_jsonl_fpath=tmp_path / "rollouts.jsonl")
    with pytest.raises(ConfigError, match="throughput_log="):
        check_log(given)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="cannot write there: Permission denied"):
        check_log(config(tmp_path / "log.csv"))


def test_a_dry_run_makes_no_file_and_still_refuses_another_s(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    check_log(config(log, dry_run=True))
    assert not log.exists()
    log.write_text("a,b\n")
    with pytest.raises(ConfigError, match="other columns"):
        check_log(config(log, dry_run=True))


def test_a_last_line_without_its_end_keeps_to_itself(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_bytes(HEADER + b"2024-01-01,by hand")
    append_line(log, {"date": "2024-01-02", "output": 'a "quoted", name'})
    assert [each["date"] for each in read(log)] == ["2024-01-01", "2024-01-02"]
    assert read(log)[1]["output"] == 'a "quoted", name'


def test_a_file_written_by_hand_keeps_its_columns(bench: Bench) -> None:
    log = bench.folder / "throughput_log.csv"
    log.write_text("Sun Nov 22 13:54:00 UTC 2026,1000,300,3.33,0.73\nMon Nov 23,5,,,\n")
    assert run_virtual(bench.collect(ROWS, throughput_log=log)) == 0
    first, _, last = [line.split(",") for line in log.read_text().splitlines()]
    assert first[-1] == "0.73" and len(last) == 5
    assert last[1] == "3" and float(last[4]) == pytest.approx(2 / 3, abs=1e-3)


def test_many_writers_share_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    writers = [
        threading.Thread(target=append_line, args=(log, {"date": f"{n}"})) for n in range(40)
    ]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert log.read_bytes().count(HEADER) == 1
    assert sorted(int(each["date"]) for each in read(log)) == list(range(40))
