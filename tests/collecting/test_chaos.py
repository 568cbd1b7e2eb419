"""ng_chaos: what breaks is found and named; what is killed at random loses nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint, says
from support import Bench, asked, read_jsonl, row, write_jsonl
from workplace import VERIFIER, Workplace

from rollout_kit.api.testing import run_virtual
from rollout_kit.authoring.chaos.chaos import chaos
from rollout_kit.authoring.chaos.drill import LineCounter
from rollout_kit.authoring.chaos.findings import MAX_SHOWN, ChaosReport, Invariant
from rollout_kit.authoring.chaos.kills import draw_kills
from rollout_kit.authoring.chaos.processes import Processes
from rollout_kit.authoring.chaos.witness import Witness
from rollout_kit.authoring.chaos.words import build_words
from rollout_kit.config.keys import ChaosConfig, KillsConfig
from rollout_kit.config.load import Config, load
from rollout_kit.errors import ConfigError
from rollout_kit.store.files import OutputPaths

ROWS = [row(f"q{number}") for number in range(4)]
SECRET = "sk-planted-0123456789"


@pytest.fixture
def collected(bench: Bench) -> Bench:
    """Eight sound rollouts."""
    assert run_virtual(bench.collect(ROWS, num_repeats=2)) == 0
    return bench


def check(bench: Bench, **keys: Any) -> ChaosReport:
    given = {
        "input_jsonl_fpath": str(bench.folder / "tasks.jsonl"),
        "output_jsonl_fpath": bench.folder / "rollouts.jsonl",
        "num_repeats": 2,
        "check_only": True,
        **keys,
    }
    command = ChaosConfig.model_validate(given)
    return chaos(Config(command, {}, {}, {}, {}, frozenset({SECRET})), [], print)


Lines = list[dict[str, Any]]


def test_sound_files_hold(collected: Bench) -> None:
    report = check(collected)
    assert report.holds, "\n".join(report.lines())
    assert report.state(Invariant.ENDS) == report.state(Invariant.GONE) == "not checked"
    assert report.notes[Invariant.ACCOUNTED] == "8 planned: 8 with a result"
    assert report.notes[Invariant.SECRET].startswith("1 searched for in ")
    assert not (collected.folder / "rollouts_chaos").exists()


def changed(place: int, **fields: Any) -> Callable[[Lines], Lines]:
    return lambda lines: [
        {**line, **fields} if number == place else line for number, line in enumerate(lines)
    ]


def without(place: int, name: str, block: str = "") -> Callable[[Lines], Lines]:
    def apply(lines: Lines) -> Lines:
        (lines[place][block] if block else lines[place]).pop(name)
        return lines

    return apply


@pytest.mark.parametrize(
    ("corrupt", "invariant", "line", "words"),
    [
        (lambda lines: lines[1:], Invariant.ACCOUNTED, 1, "is planned, but in none of the files"),
        (lambda lines: [*lines, lines[2]], Invariant.ONCE, 9, "duplicate of line 3"),
        (lambda lines: [*lines, "[1]"], Invariant.KEPT, 9, "not a JSON object"),
        (lambda lines: [*lines, '{"reward": NaN}'], Invariant.KEPT, 9, "not JSON: "),
        (lambda lines: [*lines, {"reward": 1}], Invariant.KEPT, 9, "not a rollout"),
        (changed(3, reward=None), Invariant.HONEST, 4, "not a finite number: None"),
        (changed(3, reward="1"), Invariant.HONEST, 4, "not a finite number: '1'"),
        (changed(3, response={"id": "x"}), Invariant.HONEST, 4, "has no response"),
        (without(3, "reward"), Invariant.HONEST, 4, "was verified, but has no reward"),
        (
            without(3, "verifier", "rollout"),
            Invariant.HONEST,
            4,
            "has a reward (1) but no verifier",
        ),
        (changed(3, said=f"the key {SECRET}"), Invariant.SECRET, 4, "contains a secret"),
    ],
)
def test_what_is_wrong_with_a_rollouts_file_is_named(
    collected: Bench,
    corrupt: Callable[[Lines], Lines],
    invariant: Invariant,
    line: int,
    words: str,
) -> None:
    path = collected.folder / "rollouts.jsonl"
    before = collected.lines()
    write_jsonl(path, corrupt(json.loads(json.dumps(before))))
    report = check(collected)
    [finding] = report.findings
    assert finding.invariant is invariant and finding.line == line and words in finding.what
    named = path if invariant is not Invariant.ACCOUNTED else collected.folder / "tasks.jsonl"
    assert finding.path == named and f"{named}:{line}: " in finding.format()
    if invariant in (Invariant.ACCOUNTED, Invariant.ONCE, Invariant.HONEST):
        about = before[{1: 0, 9: 2, 4: 3}[line]]["rollout"]
        assert finding.key is not None and finding.key.task_id == about["task_id"]
        assert f"{about['task_id']}:{about['rollout_index']} of echo_agent" in finding.format()
    assert SECRET not in "\n".join(report.lines())
    assert f"{invariant.value:<38}  BROKEN" in "\n".join(report.lines())


def test_a_torn_last_line_is_named_and_its_rollout_too(collected: Bench) -> None:
    path = collected.folder / "rollouts.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    found = check(collected).findings
    assert [each.invariant for each in found] == [Invariant.KEPT, Invariant.ACCOUNTED]
    assert "a torn last line" in found[0].what and found[0].line == 8


def test_a_response_that_waits_is_accounted_for_but_not_beside_its_rollout(
    collected: Bench,
) -> None:
    first, *others = collected.lines()
    parked = {k: v for k, v in first.items() if k != "reward"} | {"kind": "unverified"}
    waiting = collected.folder / "rollouts.d/unverified.jsonl"
    write_jsonl(waiting, [parked])
    [finding] = check(collected).findings
    assert finding.invariant is Invariant.ONCE and "rollouts.jsonl:1" in finding.what
    write_jsonl(collected.folder / "rollouts.jsonl", others)
    report = check(collected)
    assert report.holds and report.notes[Invariant.ACCOUNTED].endswith(
        "7 with a result, 1 unverified"
    )
    write_jsonl(waiting, [first])
    [finding] = check(collected).findings
    assert finding.invariant is Invariant.HONEST and finding.path == waiting
    # killed in between, both files hold it: the next run puts that right
    (collected.folder / "rollouts.d/run.json").unlink()
    write_jsonl(waiting, [parked])
    write_jsonl(collected.folder / "rollouts.jsonl", [first, *others])
    assert check(collected).holds


def test_a_failure_needs_a_reason_and_has_no_reward(collected: Bench) -> None:
    first, *others = collected.lines()
    write_jsonl(collected.folder / "rollouts.jsonl", others)
    identity = {name: first[name] for name in ("agent_ref", "rollout")}
    failures = collected.folder / "rollouts.d/failures.jsonl"
    write_jsonl(failures, [{**identity, "failure": {"class": "ModelError", "message": "no"}}])
    report = check(collected)
    assert report.holds and report.notes[Invariant.ACCOUNTED].endswith("7 with a result, 1 failed")
    write_jsonl(failures, [{**identity, "failure": {"message": ""}, "reward": 0.0}])
    reasonless, rewarded = check(collected).findings
    assert reasonless.invariant is Invariant.ACCOUNTED and "no reason" in reasonless.what
    assert rewarded.invariant is Invariant.HONEST and rewarded.line == 1


def test_lines_that_are_no_tasks_must_have_been_named(bench: Bench) -> None:
    assert run_virtual(bench.collect([*ROWS, "{"], num_repeats=2)) == 2
    assert check(bench).holds
    (bench.folder / "rollouts.d/failures.jsonl").unlink()
    [finding] = check(bench).findings
    assert finding.invariant is Invariant.ACCOUNTED and finding.line == 5


def test_more_repeats_than_were_collected_are_not_accounted_for(collected: Bench) -> None:
    report = check(collected, num_repeats=4)
    assert len(report.of(Invariant.ACCOUNTED)) == 8
    text = "\n".join(report.lines())
    assert f"… and {8 - MAX_SHOWN} more" in text and "8 planned: " not in text
    figures = report.figures()
    assert figures["invariants"]["accounted"]["state"] == "BROKEN" and not figures["holds"]
    assert figures["findings"][0]["key"]["rollout_index"] == 2


def test_a_witness_names_what_changed_or_went(collected: Bench) -> None:
    paths = OutputPaths(collected.folder / "rollouts.jsonl")
    lines = collected.lines()
    write_jsonl(paths.unverified, [lines[0], lines[7]])
    write_jsonl(paths.main, lines[:7])
    witness = Witness(paths)
    witness.look()
    write_jsonl(paths.main, lines)  # the eighth has its verdict
    paths.unverified.unlink()
    witness.look()
    assert witness.findings == []
    lines[2]["reward"] = 0.5
    write_jsonl(paths.main, lines[:6])
    witness.look()
    words = [(each.line, each.what) for each in witness.findings]
    gone = "its line has disappeared"
    assert words == [(3, "its line has changed"), (7, gone), (8, gone)]
    assert {each.key.task_id for each in witness.findings if each.key} >= {
        lines[7]["rollout"]["task_id"]
    }


def test_a_parked_response_that_goes_nowhere_is_lost(collected: Bench) -> None:
    paths = OutputPaths(collected.folder / "rollouts.jsonl")
    lines = collected.lines()
    write_jsonl(paths.main, lines[1:])
    write_jsonl(paths.unverified, lines[:1])
    witness = Witness(paths)
    witness.look()
    paths.unverified.unlink()
    witness.look()
    [finding] = witness.findings
    assert finding.path == paths.unverified and "is missing now" in finding.what


def test_the_same_seed_kills_the_same_way_and_another_does_not() -> None:
    plans = [draw_kills(KillsConfig(collector=5, servers=4, ng_run=3, seed=s)) for s in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert len(plans[0]) == 12 and [each.at for each in plans[0]] == sorted(
        each.at for each in plans[0]
    )


def test_each_command_gets_the_words_that_are_its_own(workplace: Workplace) -> None:
    (workplace.folder / "more.yaml").write_text("config_paths: [run.yaml]\nnum_repeats: 3\n")
    argv = ["+config_paths=[more.yaml]", "+input_jsonl_fpath=t.jsonl", "+kills.seed=1"]
    argv += ["+echo.resources_servers.echo.num_workers=2", "+max_restarts=9", "+json=true"]
    folder = workplace.folder / "out"
    folder.mkdir()
    config = load(argv, ChaosConfig, workplace.folder)
    told = build_words(config, argv, folder)
    logs, port = f"+log_dir={folder}/logs", f"+head_server.port={told.head_server.port}"
    where = ["+head_server.host=127.0.0.1", port]
    assert told.head_server.port != 11000 and told.through_ng_run
    assert told.ng_run == [argv[0], argv[3], argv[4], logs, *where]
    filed = f"+config_paths=[{folder}/collect.yaml]"
    assert told.collector == [argv[1], argv[4], filed, *where]
    assert (folder / "collect.yaml").read_text() == "num_repeats: 3\n"
    assert told.ng_reverify == [argv[0], argv[3]]
    alone = load([*argv, "+kills.servers=0", "+kills.ng_run=0"], ChaosConfig, workplace.folder)
    told = build_words(alone, argv, folder)
    assert not told.through_ng_run
    assert told.collector == [argv[0], argv[1], argv[3], argv[4], logs]


def test_progress_counts_each_line_once(tmp_path: Path) -> None:
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    progress = LineCounter(paths)
    assert progress.count() == 0
    paths.main.write_text("{}\n{}\n{")
    paths.folder.mkdir()
    paths.failures.write_text("{}\n")
    assert progress.count() == 3
    with paths.main.open("a") as stream:
        stream.write("}\n")
    assert progress.count() == 4 == progress.count()


def test_what_is_left_over_is_found_named_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout_kit.authoring.chaos.processes.LEFT_S", 0.5)
    processes = Processes(tmp_path)
    code = "import subprocess; subprocess.Popen(['sleep', '98765'], start_new_session=True)"
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "ROLLOUT_KIT_CHAOS": processes.mark}
    )
    assert len(processes.find_alive()) == 1
    [named] = processes.kill_left_over()
    assert "sleep 98765" in named
    assert processes.kill_left_over() == []


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"check_only": False}, r"no server to start: add '\+config_paths"),
        ({"output_jsonl_fpath": None}, "output_jsonl_fpath is missing"),
        ({"output_jsonl_fpath": Path("nowhere.jsonl")}, r"no output file nowhere\.jsonl to check"),
        ({"input_jsonl_fpath": "-"}, "can be read only once"),
    ],
)
def test_what_cannot_be_checked_is_one_line(
    collected: Bench, keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check(collected, **keys)


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    with endpoint(says(asked)) as model:
        yield Workplace(tmp_path, model)


def drill(workplace: Workplace, *argv: str) -> tuple[int, str]:
    files = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]
    return workplace.run("chaos", "+config_paths=[run.yaml]", *files, *argv)


def test_killed_at_random_everywhere_it_holds(workplace: Workplace) -> None:
    """The short form of `make chaos`."""
    workplace.tasks(100)
    workplace.model.delay_s = 0.1
    status, output = drill(
        workplace,
        "+num_samples_in_parallel=4",
        "+kills.collector=2",
        "+kills.servers=1",
        "+kills.ng_run=0",
        "+json=true",
    )
    assert status == 0, output
    report = json.loads(output.splitlines()[-1])
    assert {each["state"] for each in report["invariants"].values()} == {"held"}, report
    assert "killed: " in output and "too late" not in output
    assert "collector 2×" in output and "server 1×" in output
    assert "20 verified again" in report["invariants"]["honest"]["note"]
    assert len(read_jsonl(workplace.folder / "out/rollouts.jsonl")) == 100


def test_a_verifier_that_makes_rewards_up_is_found_out(workplace: Workplace) -> None:
    workplace.tasks(6)
    moody = VERIFIER.replace(
        "body.scored(float(output_text(body.response) == body.expected))",
        "body.scored(float(os.getpid()))",
    )
    (workplace.folder / "resources_servers/echo/app.py").write_text(moody)
    status, output = drill(workplace, "+kills.collector=0", "+kills.servers=0", "+kills.ng_run=0")
    assert status == 1, output
    assert (
        "no reward without its verdict           BROKEN       6 rewards · 6 verified again"
        in output
    )
    assert "but verifying the same response again" in output and "… and 1 more" in output


@pytest.mark.chaos
def test_a_collector_that_cannot_run_is_no_finding_but_an_error(workplace: Workplace) -> None:
    workplace.tasks(6)
    status, output = drill(workplace, "+kills.servers=0", "+kills.ng_run=0", "+agent_name=nobody")
    assert status == 1 and "error: agent_name: no agent is called 'nobody'" in output


@pytest.mark.chaos
def test_a_run_that_hangs_is_named(workplace: Workplace) -> None:
    workplace.tasks(6)
    (workplace.folder / "slow_verdicts").touch()
    quiet = ["+kills.collector=0", "+kills.servers=0", "+kills.ng_run=0"]
    status, output = drill(workplace, *quiet, "+run_timeout_s=8", "+num_reverified=0")
    assert status == 1, output
    assert "a run of ng_collect_rollouts did not end in 8 s" in output
    assert "6 planned: 0 with a result, 6 unverified" in output
    assert "outlived" not in output
