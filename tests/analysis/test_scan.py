"""ng_scan: ready scanners and those of users, what is kept, and questions to a model."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from agentic import FAULTS, FOUND_BY, agentic_line, faulty_line, plain_turns, say, use
from claims import assert_prints
from command import as_function
from endpoint import Endpoint, endpoint, says
from support import read_jsonl, write_jsonl

import rollout_kit as rk
from rollout_kit.authoring.questions import write_transcript
from rollout_kit.store.notes.labels import Labelled, Labels
from rollout_kit.store.notes.scans import find_scans
from rollout_kit.store.rollouts import RolloutFile

scan_command = as_function("ng_scan")


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """Ten rollouts of 100 turns with one fault each."""
    return write_jsonl(
        tmp_path / "r.jsonl", [faulty_line(n, fault) for n, fault in enumerate(FAULTS)]
    )


def scan(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What `ng_scan … +json=true` prints."""
    with pytest.raises(SystemExit) as ended:
        scan_command([*words, "+json=true"])
    found = json.loads(capsys.readouterr().out)
    assert ended.value.code == (1 if found.get("failed") or "error" in found else 0)
    return found


def test_ready_scanners_find_each_fault(faulty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = scan(capsys, str(faulty))
    assert found["scanned_now"] == 10
    for task, (fault, scanner) in enumerate(FOUND_BY.items()):
        tasks = {each["task_id"] for each in found["scanners"][scanner]["examples"]}
        assert f"{task:016x}" in tasks, fault
    assert scan(capsys, str(faulty)) == {**found, "scanned_now": 0}
    assert scan(capsys, str(faulty), "+scanner=[loop]")["scanners"]["loop"]["rollouts"] == 1


def test_a_person_reads_where_to_look(faulty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scan_command([str(faulty), "+scanner=[loop,refusal]"])
    said = capsys.readouterr().out
    assert "10 rollouts, 10 of them scanned now" in said
    assert "rollout 0, turn 32: 1 call repeated 6 times: bash grep -r bug src" in said
    assert "Nothing was found by refusal." in said
    shown = said.replace(str(faulty), "results/rollouts.jsonl")
    assert "ng_view results/rollouts.jsonl \"+where='loop' in scans\"" in shown
    assert_prints("docs/scanning.md", "10 rollouts", shown)


def test_own_scanners(faulty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = faulty.with_name("checks.py")
    checks.write_text(
        "def find(rollout):\n"
        "    return [(step.number, 'a wide search') for step, tool in rollout.uses()\n"
        '            if tool.arguments.startswith(\'{"command":"grep -r\')]\n'
        "def long(rollout):\n"
        "    return len(rollout.steps) > 1000\n"
    )
    words = [
        str(faulty),
        "+regex.sorry=I give up|503 Service",
        "+rule.fails=any(tool == 'search' and error)",
        "+rule.many=count(error) >= 4 and num_turns >= 0",
        f"+function.wide={checks}:find",
        f"+function.long={checks}:long",
    ]
    found = scan(capsys, *words)["scanners"]
    turns = {name: [each["turn"] for each in it["examples"]] for name, it in found.items()}
    assert turns == {"sorry": [100, 81], "fails": [81], "many": [81], "wide": [31], "long": []}
    assert found["wide"]["findings"] == 6
    assert scan(capsys, *words)["scanned_now"] == 0
    checks.write_text(checks.read_text().replace("> 1000", "> 99"))
    again = scan(capsys, *words)
    assert again["scanned_now"] == 10  # it is another function now
    assert again["scanners"]["long"]["rollouts"] == 10


def test_findings_can_be_filtered_for(faulty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scan(capsys, str(faulty), "+regex.sorry=I give up")
    scan(capsys, str(faulty))

    def where(expression: str) -> list[int]:
        return [int(each.key.task_id, 16) for each in RolloutFile(faulty).where(expression)]

    assert where("'sorry' in scans") == where("'gave_up' in scans") == [6]
    assert where("'loop' in scans or 'context_lost' in scans") == [2, 9]
    assert where("any(tool == 'search' and error)") == [8]
    assert where("count(tool == 'edit') == 2 and not last(error)") == [0]
    assert where("all(tool == 'bash' or turn == 100 or error)") == [1, 2, 3, 4, 6, 7, 8, 9]
    with pytest.raises(rk.ConfigError, match="'tol'"):
        where("any(tol == 'search')")
    with pytest.raises(rk.ConfigError, match="the only functions are"):
        where("any(any(error))")


def test_precision_and_recall_against_labels(
    faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = Labels.beside(faulty)
    for task, said in {2: "loop=yes", 3: "loop=no", 4: "bad", 5: "loop=no"}.items():
        labels.set(Labelled(f"{task:016x}", "solver", "", 0), said)
    it = scan(capsys, str(faulty), "+scanner=[loop]", "+labels.bad=loop=yes")["scanners"]["loop"]
    assert (it["labelled"], it["precision"]["value"], it["recall"]["value"]) == (4, 1.0, 0.5)
    assert it["recall"]["low"] < 0.5 < it["recall"]["high"]
    error = scan(capsys, str(faulty), "+scanner=[loop]", "+labels.bad=lop=yes")["error"]
    assert "loop=yes" in error


def test_a_scanner_that_takes_for_ever_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = plain_turns(3)
    turns[1] = use("bash", "a" * 40 + "!", 1, command="x")
    rows = [
        agentic_line(0, plain_turns(3)),
        agentic_line(1, turns),
        agentic_line(2, plain_turns(3)),
    ]
    path = write_jsonl(tmp_path / "r.jsonl", rows)
    words = [str(path), "+regex.slow=(a+)+$", "+scanner=[loop]", "+time_limit_s=0.5"]
    found = scan(capsys, *words)
    assert list(found["failed"].values()) == [1]
    assert found["rollouts"] == 2  # the third is not held up
    scans = find_scans(path)
    assert scans is not None
    assert len(read_jsonl(scans.path)) == 3  # the set, and two rollouts: the other is tried again


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("+scanner=[lop]", "'loop'"),
        ("+regex.x=(", "no regular expression"),
        ("+rule.x=any(", "no filter"),
        ("+rule.x='bug' in labels", "+where"),
        ("+function.x=nowhere.py:f", "FILE.py:FUNCTION"),
        ("+regex.loop=x", "name of a ready scanner"),
        ("+question.x=why?", "+question_model="),
    ],
)
def test_what_cannot_be_used_is_said(
    faulty: Path, capsys: pytest.CaptureFixture[str], word: str, error: str
) -> None:
    assert error in scan(capsys, str(faulty), word)["error"]


def model_file(folder: Path, model: Endpoint) -> str:
    """A YAML file with the model server of an endpoint."""
    settings = {"entrypoint": "app.py", "openai_base_url": model.url, "openai_model": "m"}
    servers = {"policy_model": {"responses_api_models": {"openai_model": settings}}}
    path = folder / "model.yaml"
    path.write_text(json.dumps(servers))
    return str(path)


def test_lines_that_are_no_rollouts_are_named(
    faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with faulty.open("a") as stream:
        stream.write(faulty.read_text().splitlines()[0] + '\n{"a": 1}\n{"kind": "rol')
    left_out = scan(capsys, str(faulty), "+scanner=[loop]")["left_out"]
    assert sum(left_out.values()) == 3
    faulty.write_text('{"a": 1}\n')
    assert "it holds no rollout: 1 " in scan(capsys, str(faulty))["error"]


def answer(body: dict[str, Any]) -> str:
    """Finds that somebody gave up, as a model would say it."""
    if "I give up" not in body["input"][0]["content"]:
        return '{"found": false, "turn": 0, "quote": "", "reason": "It goes to the end."}'
    return 'Well:\n{"found": true, "turn": 100, "quote": "I give up", "reason": "It stops."}'


def test_a_question_is_asked_once_for_each_rollout(
    faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with endpoint(says(answer)) as model:
        yaml = model_file(faulty.parent, model)
        words = [
            str(faulty),
            "+question.stops=Does the agent stop early?",
            f"+question_model={yaml}",
        ]
        found = scan(capsys, *words)
        assert found["scanners"]["stops"]["rollouts"] == 1
        (example,) = found["scanners"]["stops"]["examples"]
        assert (example["turn"], example["says"]) == (100, "It stops. “I give up”")
        assert scan(capsys, *words)["scanned_now"] == 0
        assert model.saw.total() == 10
    assert [each.key.task_id for each in RolloutFile(faulty).where("'stops' in scans")] == [
        f"{6:016x}"
    ]


def test_an_unreadable_answer_is_no_finding(
    faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def garble(body: dict[str, Any]) -> str:
        is_loop = "nothing found" in body["input"][0]["content"]
        return "yes, I think so" if is_loop else answer(body)

    with endpoint(says(garble)) as model:
        yaml = model_file(faulty.parent, model)
        words = [str(faulty), "+question.stops=Does it stop?", f"+question_model={yaml}"]
        with pytest.raises(SystemExit):
            scan_command([*words, "+dry_run=true"])
        said = capsys.readouterr().out
        assert "stops: 10 requests to" in said and "Question: Does it stop?" in said
        assert model.saw.total() == 0
        found = scan(capsys, *words)
    assert "cannot be read" in next(iter(found["failed"]))
    assert found["scanners"]["stops"]["rollouts"] == 1 and found["rollouts"] == 10


def test_a_model_that_never_answers_is_asked_few_times(
    faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with endpoint(says(lambda body: "yes")) as model:
        yaml = model_file(faulty.parent, model)
        found = scan(capsys, str(faulty), "+question.x=Does it stop?", f"+question_model={yaml}")
    assert "cannot be read" in found["error"] and "+stop_early=false" in found["error"]


def test_a_transcript_leaves_out_the_middle() -> None:
    line = agentic_line(
        0, [use("bash", "x" * 50_000 + "the end", 0, command="cat"), [say("Done.")]]
    )
    text = write_transcript(line)
    assert "[turn 1]" in text and "characters left out]" in text and "the end" in text
    assert len(text) < 10_000 and "[turn 2] Done." in text


@pytest.mark.slow
def test_each_verdict_once_through_twenty_kills(tmp_path: Path) -> None:
    rows = [
        agentic_line(n, [*plain_turns(2)[:1], [say(f"I give up {n}." if n % 4 == 0 else f"{n}.")]])
        for n in range(2000)
    ]
    path = write_jsonl(tmp_path / "r.jsonl", rows)
    with endpoint(says(answer), delay_s=0.05) as model:
        command = [
            str(Path(sys.executable).with_name("ng_scan")),
            str(path),
            "+question.stops=Does the agent stop early?",
            f"+question_model={model_file(tmp_path, model)}",
            "+json=true",
        ]
        kills = 0
        for seed in range(20):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                goal = len(model.requests) + random.Random(seed).randrange(20, 120)
                while process.poll() is None and len(model.requests) < goal:
                    time.sleep(0.01)
                kills += process.poll() is None
                process.send_signal(signal.SIGKILL)
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert kills == 20
    assert found["rollouts"] == 2000 and found["scanners"]["stops"]["rollouts"] == 500
    scans = find_scans(path)
    assert scans is not None
    keys = [line["task_id"] for line in read_jsonl(scans.path) if "task_id" in line]
    assert len(keys) == len(set(keys)) == 2000
    assert len(model.requests) <= 2000 + 20 * 16  # what was in flight at a kill is asked again
