"""What a page shows as the output of a command is what the command prints, figures aside.

Output directly below a command that the walk of test_readme.py runs is compared there. Each other
block is compared by a call of `assert_prints` or `assert_written` that names its page and its first
words.
"""

import ast
import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from claims import answers, assert_prints, assert_written, is_output, is_printed, shown
from command import as_function
from endpoint import endpoint, says
from exported import line, write_scored
from support import Desk, Echo, EchoRequest, asked, blocks, row, write_jsonl
from test_bottleneck import CALM, spent
from test_compare import line as bare_line
from test_groups import KEYS, Ranked, make_desk, rows
from test_readme import WALKED, documents
from workplace import ROOT, Workplace

from rollout_kit.api.testing import ScriptedModel, call_response, making, run_virtual, text_response
from rollout_kit.authoring.examination import read_rows
from rollout_kit.collecting.pacing.bottleneck import Client, verdict
from rollout_kit.errors import VerifyError
from rollout_kit.rl.lora.merge import format_manifest
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.serving.sockets import bound_socket
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

NOT_PRINTED = {
    ("docs/architecture.md", "tasks.jsonl"): "a picture",
    ("resources_servers/coherence_math/README.md", "reward = 1.0"): "a formula",
    ("resources_servers/string_match/README.md", '{"responses_create_params"'): "a row; see below",
}
"""Blocks without a language that show no output, and why."""


def find_calls() -> Iterator[tuple[str, str]]:
    """(page, first words) of every comparison in the tests."""
    for path in [*ROOT.glob("tests/*/test_*.py"), *ROOT.glob("*/*/tests/test_*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id="assert_prints" | "assert_written"),
                    args=[ast.Constant(value=str(page)), ast.Constant(value=str(begins)), _],
                ):
                    yield page, begins
                case _:
                    pass


def test_every_output_that_a_page_shows_is_compared_with_what_is_printed() -> None:
    calls = {*find_calls()}
    assert {*NOT_PRINTED}.isdisjoint(calls)
    left = {*calls, *NOT_PRINTED}
    for path in [*documents(), *ROOT.glob("docs/reference/*.md")]:
        page, text = str(path.relative_to(ROOT)), path.read_text()
        walked = [out for command, out in answers(text) if page in WALKED and not command.reason]
        for block in blocks(text):
            if is_output(block) and block not in walked:
                named = [each for each in left if _is_about(page, block.text, *each)]
                assert named, f"{page}: nothing compares this with what is printed:\n{block.text}"
                left -= {*named}
    assert not left, "these name no block"


def _is_about(page: str, text: str, of_page: str, begins: str) -> bool:
    return page == of_page and text.lstrip().startswith(begins)


@pytest.mark.parametrize(
    ("claim", "printed", "holds"),
    [
        ("reward 0.5 over 1,209 tasks", "reward 1.000 over 3 tasks", True),
        ("reward 0.5 over 1,209 tasks", "reward 0.5 over 1,209 rows", False),
        ("took 51 s at 127.0.0.1:11000", "took 3 ms at 127.0.0.1:40123", True),
        ("done 0a3f55d21c9e04b7, … and", "done 11c2fd0000000000, 1, 2 and", True),
        ("first\n…\nlast 1", "before\nfirst\na\nb\nlast 22\nafter", True),
        ("first\n…\nlast 1", "first\nlast 22", True),
        ("first\n…\nlast 1", "first\na last 1", False),
        ("first\nlast 1", "first\nbetween\nlast 1", False),
        ("36%|███▋      | 2/6 [", "100%|██████████| 6/6 [", True),
        ("ends here", "ends here, or not", False),
        ("gpt-4o", "gpt-5o", False),
    ],
)
def test_figures_may_differ_and_nothing_else(claim: str, printed: str, holds: bool) -> None:
    assert is_printed(claim, printed) is holds


def ended(main: Callable[[list[str]], None], *words: str) -> int:
    with pytest.raises(SystemExit) as status:
        main([*words])
    return int(status.value.code or 0)


def test_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    right = [(1, 1)] * 859 + [(1, 0)] * 4 + [(0, 1)] * 2 + [(0, 0)] * 344
    for side, (name, model) in enumerate([("before", "base"), ("after", "tuned")]):
        lines = [bare_line(task, pair[side], model=model) for task, pair in enumerate(right)]
        write_jsonl(tmp_path / f"{name}.jsonl", lines)
    assert ended(as_function("ng_compare"), "before.jsonl", "after.jsonl") == 0
    assert_prints("docs/comparing.md", "before.jsonl  reward", capsys.readouterr().out)


def test_a_comparison_with_the_scores_of_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/dpo").mkdir(parents=True)

    def write(name: str, right: list[list[int]]) -> str:
        path = Path(f"results/dpo/{name}.jsonl")
        lines = [
            line(task, index, f"{reward}", reward)
            for task, rewards in enumerate(right)
            for index, reward in enumerate(rewards)
        ]
        write_scored(path, lines, lambda each: each["reward"] * (2 + each["_ng_task_index"] % 3))
        return str(path)

    greedy = [(1, 1)] * 318 + [(0, 1)] * 19 + [(1, 0)] * 14 + [(0, 0)] * 161
    sampled = [(1, 3)] * 164 + [(2, 1)] * 104 + [(2, 2)] * 244
    for pairs, repeats, kind in ((greedy, 1, "greedy"), (sampled, 4, "sampled")):
        files = [
            write(
                f"{name}_{kind}",
                [[1] * pair[side] + [0] * (repeats - pair[side]) for pair in pairs],
            )
            for side, name in enumerate(("before", "after"))
        ]
        assert ended(as_function("ng_compare"), *files) == 0
    assert_prints("docs/from-rollouts-to-dpo.md", "results/dpo/before", capsys.readouterr().out)


MODEL = """
policy_model:
  responses_api_models:
    openai_model: {openai_base_url: "http://h.test/v1", openai_api_key: k, openai_model: m}
"""


def test_a_model_in_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.yaml").write_text(MODEL)
    shipped = "resources_servers/mcqa/configs/mcqa.yaml"
    shipped += ",responses_api_models/local_model/configs/local_model.yaml"
    ended(as_function("ng_validate"), f"+config_paths=[{shipped},my_model.yaml]")
    printed = capsys.readouterr()
    assert_prints("docs/environments-and-models.md", "policy_model is", printed.out + printed.err)


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    with endpoint(says(asked)) as model:
        yield Workplace(tmp_path, model)


def test_errors_in_the_command(workplace: Workplace) -> None:
    workplace.tasks(1)
    with bound_socket("127.0.0.1", 0) as sock:
        port = f"+head_server.port={sock.getsockname()[1]}"
    files = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]
    printed = [
        workplace.collect("+num_sample_in_parallel=8"),
        workplace.collect("+input_jsonl_fpath=tasks.jsnol"),
        workplace.run("collect_rollouts", *files, port),
    ]
    with bound_socket("127.0.0.1", 0) as sock:
        taken = f"+head_server.port={sock.getsockname()[1]}"
        sock.listen()
        printed.append(workplace.run("run", "+config_paths=[run.yaml]", taken))
    assert [status for status, _ in printed] == [1] * 4, printed
    said = "".join(text for _, text in printed)
    assert_prints("docs/failures.md", "error: unknown key", said)


PRICES = """
policy_model:
  responses_api_models:
    openai_model: {prices: {input: 1.25, output: 10, factors: {batch: 0.5}}}
"""


def test_costs_and_an_estimate(workplace: Workplace) -> None:
    workplace.tasks(60)
    (workplace.folder / "prices.yaml").write_text(PRICES)
    words = ["+config_paths=[run.yaml,prices.yaml]", "+input_jsonl_fpath=tasks.jsonl"]
    output = "+output_jsonl_fpath=results/hosted.jsonl"
    status, printed = workplace.run("estimate", *words, output, "+num_canary=50")
    assert status == 0, printed
    assert_prints("docs/cost.md", "Canary: ", printed)
    status, printed = workplace.run("collect_rollouts", *words, output)
    assert status == 0, printed
    assert_prints("docs/cost.md", "Collecting rollouts: ", printed)


def test_a_deployment_that_does_not_exist(workplace: Workplace) -> None:
    workplace.tasks(9)
    why = "The API deployment for this resource does not exist. If you created it within the last"
    refusal = {"error": {"code": "DeploymentNotFound", "message": f"{why} 5 minutes, wait."}}
    workplace.model.behaviour = lambda body: (404, refusal)
    url = workplace.model.url.removesuffix("/v1")
    keys = f"{{azure_endpoint: '{url}', azure_deployment: gpt-4o-mini, api_key: k}}"
    text = f"policy_model: {{responses_api_models: {{azure_openai_model: {keys}}}}}"
    (workplace.folder / "azure.yaml").write_text(text)
    status, printed = workplace.collect("+config_paths=[run.yaml,azure.yaml]")
    assert status == 1, printed
    printed = printed.replace(url, "https://my.openai.azure.com")
    assert_prints("responses_api_models/azure_openai_model/README.md", "error: stopped: ", printed)


def test_groups_that_a_judge_leaves_without_a_score(tmp_path: Path) -> None:
    class Judged(Ranked):
        async def verify_group(self, task: JsonObject, members: Any) -> JsonObject:
            if int(asked(task["responses_create_params"])[1:]) < 7:
                raise VerifyError("the judge 'judge_model' gave no answer: it is down")
            return await super().verify_group(task, members)

    desk = make_desk(tmp_path)
    desk.verifier = making(Judged)
    assert run_virtual(desk.collect(rows(9), **KEYS)) == 2
    printed = desk.out.getvalue().replace("echo: the judge", "genrm_compare: the judge")
    assert_prints("docs/groups.md", "Group reward ", printed)


def test_a_merge() -> None:
    difference = {"adapter": 0.2, "merged": 3e-6, "tolerance": 0.001}
    said = format_manifest({"output": "models/merged", "difference": difference})
    assert_prints("docs/lora.md", "merged into", said)


def test_bottlenecks() -> None:
    fed, limited = spent(tools=40.0, verification=20.0), spent(rate_limit=600.0)
    waiting = spent()
    waiting.sent, waiting.in_engine, waiting.num_loads = 100.0, 66.0, 100
    busy = Client(100.0, busy=0.97, cpu=0.9, journal=0.1)
    found = [verdict(fed, CALM), verdict(limited, CALM), verdict(spent(), busy)]
    said = [each.sentence for each in found if each]
    assert_prints("docs/parallelism.md", "Bottleneck: the model, 93 %", "\n".join(said))
    before_engine = verdict(waiting, CALM)
    assert before_engine
    assert_prints("docs/parallelism.md", "Bottleneck: the model, 97 %", before_engine.sentence)


class Judge(Echo):
    """Gives no verdict on q5."""

    async def verify(self, body: EchoRequest) -> VerifyResponse:
        if body.expected == "q5":
            raise VerifyError("the judge is down", retryable=False)
        return body.scored({"q0": 0.0}.get(body.expected, 1.0))


class LaterJudge(Echo):
    async def verify(self, body: EchoRequest) -> VerifyResponse:
        return body.scored({"q1": 0.0}.get(body.expected, 1.0))


def test_new_verdicts(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.verifier = making(Judge)
    run_virtual(desk.collect([row(f"q{number}") for number in range(6)], max_attempts=1))
    write_jsonl(tmp_path / "all.jsonl", [*desk.lines(), *desk.lines("unverified")])
    desk.verifier = making(LaterJudge, fast_mode=True)
    given = str(tmp_path / "all.jsonl")
    assert run_virtual(desk.reverify(input_jsonl_fpath=given)) == 0
    assert_prints("docs/reverify.md", "Plan: 384 stored", desk.out.getvalue())


class Sums(ResourcesServer):
    @tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(1.0, extracted_answer="42")


def test_a_line_and_its_turns(tmp_path: Path) -> None:
    def answer(params: JsonObject) -> Any:
        calls = params["input"][0]["content"] == "Add." and len(params["input"]) == 1
        return call_response(("add", '{"a": 40, "b": 2}')) if calls else text_response("42")

    desk = Desk(tmp_path)
    desk.model, desk.verifier = ScriptedModel(answer), making(Sums)
    rows = [row(question, expected_answer="42") for question in ("What is 6 × 7?", "Add.")]
    assert asyncio.run(desk.collect(rows)) == 0
    short, long = sorted(desk.lines(), key=lambda each: each["rollout"]["num_turns"])
    assert_written("docs/files.md", '{"kind": "rollout"', short)
    assert_written("docs/files.md", '{"to": ', long["rollout"]["turns"])


def test_a_row_for_string_match_has_fields_of_its_rows() -> None:
    text = shown("resources_servers/string_match/README.md", '{"responses_create_params"')
    examples = read_rows(ROOT / "resources_servers/string_match/data/example.jsonl")
    named = {name for example in examples for name in example}
    assert {*re.findall(r'"(\w+)": ', text)} - {"input", "role", "content"} <= named


@pytest.mark.documents
def test_a_drill(tmp_path: Path) -> None:
    with endpoint(says(asked)) as model:
        place = Workplace(tmp_path, model)
        (tmp_path / "env.yaml").unlink()  # it has a secret
        kills = [f"+kills.{name}=1" for name in ("collector", "servers", "ng_run")]
        status, printed = place.run(
            *("chaos", "+config_paths=[configs/rehearsal.yaml]", "+dataset=example"),
            *("+num_repeats=20", "+output_jsonl_fpath=out/rollouts.jsonl", "+kills.seed=0"),
            *kills,
        )
    assert status == 0, printed
    assert_prints("docs/fault-injection.md", "every planned rollout", printed)
