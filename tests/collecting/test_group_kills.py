"""Collections that score groups, killed at any moment: each rollout once, each group one score."""

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from support import read_jsonl
from test_chaos_suite import Note, Site

from rollout_kit import load

VERIFIER = """
import os
from pathlib import Path

from rollout_kit import JsonObject, ResourcesServer, VerifyRequest, VerifyResponse, output_text

CALLS = Path(__file__).parent / "calls"


class Row(VerifyRequest):
    expected: str


class Patient(ResourcesServer):
    async def verify(self, body: Row) -> VerifyResponse:
        return body.scored(float(output_text(body.response) == body.expected))

    async def verify_group(self, task: JsonObject, members: list) -> JsonObject:
        with CALLS.open("a") as stream:
            stream.write(f"{task['expected']} {sum(each is not None for each in members)}\\n")
        scores = [each["verdict"]["reward"] + slot for slot, each in enumerate(members)]
        return {"members": scores, "group": {"n": len(members)}}
"""

REPEATS = 8


def kill_and_check(
    folder: Path, num_tasks: int, num_kills: int, latency_s: float
) -> dict[str, int]:
    site = Site(folder, latency_s=latency_s)
    (folder / "resources_servers/patient/app.py").write_text(VERIFIER)
    config = (folder / "run.yaml").read_text().replace('{verdict_s: "${verdict_s}"}', "{}")
    (folder / "run.yaml").write_text(config)
    output, rng = folder / "out/rollouts.jsonl", random.Random(0)
    number, wanted = f"+num_repeats={REPEATS}", num_tasks * REPEATS

    def num_lines() -> int:
        return output.read_bytes().count(b"\n") if output.exists() else 0

    with site.endpoint():
        site.tasks(num_tasks)
        killed = 0
        while killed < num_kills:
            collector = site.collecting(number, "+num_samples_in_parallel=32")
            share = (killed + rng.random()) / num_kills
            while num_lines() < share * wanted and collector.poll() is None:
                time.sleep(0.01)
            time.sleep(rng.random() / 20)
            collector.send_signal(signal.SIGKILL)
            collector.communicate()
            killed += 1
        status, said = site.collect(number, "+num_samples_in_parallel=32")
        assert status == 0, said
        assert f"{num_tasks:,} of {num_tasks:,} groups scored" in said, said
    lines = read_jsonl(output)
    keys = Counter((line["rollout"]["task_id"], line["_ng_rollout_index"]) for line in lines)
    assert len(keys) == len(lines) == wanted
    groups = read_jsonl(folder / "out/rollouts.d/groups.jsonl")
    assert len(groups) == len({line["task_id"] for line in groups}) == num_tasks
    for rollout in load(output):  # the reader takes a score only if it is current
        assert rollout.group and rollout.group.figures == {"n": REPEATS}
        assert rollout.group_reward == 1.0 + rollout.key.rollout_index
    asked = (folder / "resources_servers/patient/calls").read_text().splitlines()
    assert {line.split()[1] for line in asked} == {str(REPEATS)}
    return {"kills": killed, "groups": num_tasks, "calls": len(asked)}


@pytest.mark.slow
def test_each_group_is_scored_once_after_a_few_kills(tmp_path: Path) -> None:
    found = kill_and_check(tmp_path, 40, 4, 0.02)
    assert found["calls"] < 40 + 4 * 16 + 1, "only calls that a kill cut off are repeated"


@pytest.mark.chaos
def test_two_thousand_groups_of_eight_killed_thirty_times(
    tmp_path: Path, record_property: Note
) -> None:
    found = kill_and_check(tmp_path, 2_000, 30, 0.005)
    record_property("groups killed thirty times", f"{found}")
    assert found["calls"] <= 2_000 + 30 * 16, found
