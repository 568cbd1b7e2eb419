"""Three judges over HTTP: one is slow, one is down for a while, one replies with garbage, and the
collector is killed several times meanwhile."""

import json
import os
import re
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint, says
from support import asked, slow, write_jsonl
from workplace import Workplace

IN_FLIGHT = 16

PROVIDER = """
{name}:
  responses_api_models:
    openai_model: {{openai_base_url: "{url}", openai_model: {name}, openai_api_key: none}}
"""

RUN = """
config_paths:
  - responses_api_models/openai_model/configs/openai_model.yaml
  - resources_servers/rubric_judge/configs/rubric_judge.yaml
rubric_judge:
  resources_servers:
    rubric_judge:
      judge_model_server: null
      judges: [{name: slow}, {name: down}, {name: garbage}]
      criteria: [{name: right, description: It is right.}]
      judge_cache_fpath: replies.jsonl
"""

GARBAGE = [
    "Full marks!",
    "",
    '{"criteria": []}',
    'Sure: {"criteria": [{"name": "right", "evidence": "", "reason": "", "score": true}]}',
    '{"criteria": [{"name": "right", "evidence": "", "reason": "", "score": "10"}]}',
    '{"criteria": [{"name": "right", "evidence": "", "reason": "", "score": true},',
]
"""A lenient reader would find points in most of it."""


def is_right(text: str) -> bool:
    """Whether the quoted answer names an even number."""
    return int(re.findall(r"It is (\d+)\.\n</answer-", text)[-1]) % 2 == 0


class Imitated:
    """One judge: whether it answers, what, and how often it was asked each question."""

    def __init__(self, down_s: float = 0, is_garbage: bool = False) -> None:
        self.down_s, self.is_garbage = down_s, is_garbage
        self.down_since: float | None = None
        self.num_refused = 0
        self.served: Counter[str] = Counter()
        self.kill_at: tuple[int, int] | None = None
        """At this request, this process is killed."""
        self.num_kills = 0

    def reply(self, messages: list[Any]) -> str:
        said = str(messages[0]["content"])
        number = int(re.findall(r"user: q(\d+)\n", said)[0])
        # one question of five gets garbage, and half of these once more
        if self.is_garbage and number % (5 if len(messages) == 1 else 10) == 0:
            return GARBAGE[number // 5 % len(GARBAGE)]
        grade = {"name": "right", "evidence": "", "reason": "so", "score": is_right(said)}
        return json.dumps({"criteria": [grade]})

    def behave(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.down_s and len(self.served) > 5:
            self.down_since = self.down_since or time.monotonic()
            if time.monotonic() < self.down_since + self.down_s or self.num_refused < 4:
                self.num_refused += 1
                return 0, None  # as a connection that breaks
        self.served[json.dumps(body["input"])] += 1
        if self.kill_at and self.served.total() >= self.kill_at[0]:
            os.kill(self.kill_at[1], signal.SIGKILL)
            self.kill_at, self.num_kills = None, self.num_kills + 1
        return says(lambda body: self.reply(body["input"]))(body)


@pytest.mark.parametrize(
    ("tasks", "kills", "delay_s", "down_s"),
    [(20, 1, 0.02, 0.1), slow(250, 4, 0.2, 60)],
    ids=["80", "1,000"],
)
def test_no_reward_comes_from_garbage_and_no_question_is_paid_twice(
    tmp_path: Path, tasks: int, kills: int, delay_s: float, down_s: float
) -> None:
    """The outage may leave rollouts without a verdict. The command is then given again."""
    judges = {
        "slow": Imitated(),
        "down": Imitated(down_s=down_s),
        "garbage": Imitated(is_garbage=True),
    }
    with ExitStack() as stack:
        policy = stack.enter_context(endpoint(says(lambda body: f"It is {asked(body)[1:]}.")))
        place = Workplace(tmp_path, policy)
        text = RUN
        for name, judge in judges.items():
            wait_s = delay_s if name == "slow" else 0
            found = stack.enter_context(endpoint(judge.behave, delay_s=wait_s))
            text += PROVIDER.format(name=name, url=found.url)
        (tmp_path / "run.yaml").write_text(text)
        questions = [f"q{number}" for number in range(tasks)]
        rows = [
            {"responses_create_params": {"input": [{"role": "user", "content": each}]}}
            for each in questions
        ]
        write_jsonl(tmp_path / "tasks.jsonl", rows)
        argv = place.collect_argv(
            "+num_repeats=4", f"+num_samples_in_parallel={IN_FLIGHT}", "+stop_early=false"
        )
        for turn in range(kills + 1):
            process = place.start("collect_rollouts", *argv)
            if turn < kills:
                at = max(1, tasks * (turn + 1) // (kills + 1))
                judges["slow"].kill_at = at, process.pid
            said, _ = process.communicate(timeout=500)
            assert process.returncode == (-signal.SIGKILL if turn < kills else 2), said
        while "the judge 'down'" in said:
            process = place.start("collect_rollouts", *argv)
            said, _ = process.communicate(timeout=500)
            assert process.returncode == 2, said
    check(place, judges, rows, said)


def check(place: Workplace, judges: dict[str, Imitated], rows: list[Any], said: str) -> None:
    """What is on disk, and what was asked for it."""
    kills = judges["slow"].num_kills
    lines, waiting = place.lines(), place.lines("unverified")
    for line in lines:
        number = int(asked(line["responses_create_params"])[1:])
        assert line["reward"] == float(number % 2 == 0)
    unreadable = {json.loads(key)[0]["content"] for key in find_unreadable(judges["garbage"])}
    expected = {asked(row["responses_create_params"]) for row in rows}
    without = {text for text in expected if any(f"user: {text}\n" in each for each in unreadable)}
    assert {asked(line["responses_create_params"]) for line in lines} == expected - without
    assert len(lines) == 4 * (len(rows) - len(without)) and without
    assert {asked(line["responses_create_params"]) for line in waiting} == without
    assert "the judge 'garbage' gave no verdict that can be read" in said
    for name, judge in judges.items():
        counted = {
            key: number
            for key, number in judge.served.items()
            if json.loads(key)[0]["content"] not in unreadable
        }
        assert counted and max(counted.values()) <= 1 + kills, name
        again = sum(number - 1 for number in counted.values())
        assert again <= kills * IN_FLIGHT, f"{name}: {again} requests were made again"
    assert judges["down"].num_refused >= 4


def find_unreadable(judge: Imitated) -> list[str]:
    """The questions whose second reply was garbage too."""
    return [
        key
        for key in judge.served
        if len(json.loads(key)) == 3 and judge.reply(json.loads(key)) in GARBAGE
    ]
