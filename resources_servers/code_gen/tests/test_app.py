import asyncio
import base64
import json
import sys
import zlib
from pathlib import Path

import pytest
from support import HANG_S, may_isolate

from rollout_kit import (
    ConfigError,
    Sandbox,
    SandboxRun,
    TaskError,
    VerifyError,
    make_response,
    message_item,
)
from rollout_kit.api.testing import making, mount
from rollout_kit.config.keys import CollectConfig
from rollout_kit.config.load import load as load_config
from rollout_kit.launch.reach import reach
from rollout_kit.serving.registry import load

CodeGen = load("resources_servers", "code_gen")

OURS = {"unsafe_code": True}
"""The code in these tests is ours: they run on machines that cannot hold a model's, too."""


def row(inputs, outputs, fn_name=None, **more):
    tests = {"inputs": inputs, "outputs": outputs, "fn_name": fn_name}
    return {
        "responses_create_params": {"input": "?"},
        "verifier_metadata": {"unit_tests": tests, **more},
    }


SUM = row(["1 2\n", "5 5\n"], ["3\n", "10\n"], difficulty="easy")
TWICE = row(["[1, 2]", "[]"], ["[2, 4]", "[]"], "twice")
POINT = row(["1\n2", "3\n4"], ["[1, 2]", "[3, 4]"], "point")
NOTHING = row(["1", "2"], ["null", "null"], "nothing")
HALF = row(["1\n"], ["0.5 1e3\nyes\n"])


def fenced(code):
    return f"Some words.\n```python\n{code}\n```\nMore words."


def verdicts(pairs, **settings):
    async def run():
        settings.setdefault("unit_test_timeout_secs", HANG_S)
        async with mount({"code_gen": making(CodeGen, **{**OURS, **settings})}) as peers:
            found = []
            for task, text in pairs:
                items = text if isinstance(text, list) else [message_item(text)]
                asked = {**task, "response": make_response("m", items, None)}
                async with asyncio.timeout(HANG_S):
                    found.append(await peers.call("code_gen", "/verify", asked, dict))
            return found

    return asyncio.run(run())


def verdict(task, text, **settings):
    return verdicts([(task, text)], **settings)[0]


TABLE = [
    # programs
    (SUM, fenced("print(sum(map(int, input().split())))"), [True, True]),
    (SUM, fenced("a, b = map(int, input().split())\nprint(a + b)\nprint()"), [True, True]),
    (SUM, fenced("print('  ', sum(map(int, open(0).read().split())), '  ')"), [True, True]),
    (SUM, fenced("print(float(sum(map(int, input().split()))))"), [True, True]),
    (SUM, fenced("print(sum(map(int, input().split())))\nraise SystemExit(1)"), [True, True]),
    (SUM, fenced("import os\nprint(sum(map(int, input().split())), flush=True)\nos._exit(0)"),
     [True, True]),
    (SUM, fenced("import threading\ndef main(): print(sum(map(int, input().split())))\n"
                 "threading.Thread(target=main).start()"), [True, True]),
    (SUM, fenced("if __name__ == '__main__':\n    print(sum(map(int, input().split())))"),
     [True, True]),
    (SUM, fenced("print(Counter([3, 3]).most_common(1)[0][0])"), [True, -2]),
    (SUM, fenced("print(3)\nprint(4)"), [-2]),
    (SUM, fenced("print(3.00001)"), [-2]),
    (SUM, fenced("print('three')"), [-2]),
    (SUM, fenced("print('sNaN')"), [-2]),
    (SUM, fenced("pass"), [-2]),
    (SUM, fenced("print(3); 1 / 0"), [-4]),
    (SUM, fenced("print(3); import os; os._exit(1)"), [-4]),
    (SUM, fenced("print(3"), [-4]),
    (HALF, fenced("print('0.50', 1000)\nprint('yes')"), [True]),
    (HALF, fenced("print('0.50', 1000)\nprint('Yes')"), [True]),
    # functions
    (TWICE, fenced("def twice(xs): return [2 * x for x in xs]"), [True, True]),
    (TWICE, fenced("class Solution:\n    def twice(self, xs: List[int]) -> List[int]:\n"
                   "        return tuple(2 * x for x in xs)"), [True, True]),
    (TWICE, fenced("def twice(xs): return [2.0 * x for x in xs]"), [True, True]),
    (TWICE, fenced("def twice(xs):\n    print('[2, 4]')\n    return xs"), [-2]),
    (TWICE, fenced("def other(xs): return xs"), [-4]),
    (TWICE, fenced("class Solution:\n    pass"), [-4]),
    (TWICE, fenced("def twice(xs): return {2, 4}"), [-2]),
    (POINT, fenced("def point(a, b): return a, b"), [True, True]),
    (POINT, fenced("def point(a): return [1, 2]"), [-4]),
    (NOTHING, fenced("def nothing(x): pass"), [True, True]),
    # printed numbers
    (row([""], ["0.333333333333 2\n"]), fenced("print(1 / 3, 2.0000001)"), [True]),
    (row([""], ["0.333333333333\n"]), fenced("print(0.33333)"), [-2]),
    (row([""], ["0.333333333333 2\n"]), fenced("print(1 / 3)"), [-2]),
    (row([""], ["1e-7\n"]), fenced("print(0)"), [True]),
    (row([""], ["123456789.123\n"]), fenced("print(123456789.12)"), [True]),
    (row([""], ["123456789.123\n"]), fenced("print(123457789.12)"), [-2]),
    (row([""], ["1000000007\n"]), fenced("print(1000000006.0)"), [-2]),
    (row([""], ["50000000000000001\n"]), fenced("print(50000000000000000)"), [-2]),
    (row([""], ["0.5\n"]), fenced("print('nan')"), [-2]),
    (row([""], ["0.5\n"]), fenced("print('inf')"), [-2]),
    (row([""], ["1e999999999999\n"]), fenced("print(0.5)"), [-2]),
    (row([""], ["10\n"]), fenced("print('1_0')"), [-2]),
    (row([""], ["1" + 5000 * "0"]), fenced("print(10**5000)"), [True]),
    (row([""], ["1" + 5000 * "0"]), fenced("print(10**5000 + 1)"), [-2]),
    (row(["1" + 5000 * "0"], ["2" + 5000 * "0"]), fenced("print(2 * int(input()))"), [True]),
    (row([""], ["YES\nNo"]), fenced("print('yes')\nprint('NO')"), [True]),
    (row([""], ["YES 1"]), fenced("print('yes 1')"), [-2]),
    (row([""], ["Alice"]), fenced("print('alice')"), [-2]),
    # which code
    (SUM, "```python\nprint(3)\n```\nNo:\n```\nprint(sum(map(int, input().split())))\n```",
     [True, True]),
    (SUM, "print(sum(map(int, input().split())))", None),
    (SUM, "```python\nprint(sum(map(int, input().split())))", None),
    (SUM, "", None),
    (SUM, [], None),
    (SUM, "```python\n```", None),
]  # fmt: skip


def test_the_table() -> None:
    found = verdicts([(task, text) for task, text, _ in TABLE], num_processes=2)
    for (_, text, wanted), verdict in zip(TABLE, found, strict=True):
        assert verdict["result"] == wanted, (text, verdict["metadata"])
        assert verdict["reward"] == float(wanted is not None and set(wanted) == {True})


CASES = [
    json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text().splitlines()
]


def test_the_cases() -> None:
    asked = {"responses_create_params": {"input": "?"}}
    found = verdicts([({**asked, **case["row"]}, case["answer"]) for case in CASES])
    for case, verdict in zip(CASES, found, strict=True):
        assert verdict["reward"] == case["reward"], (case["about"], verdict["metadata"])


FORGED = [
    "import os, sys\ndef nothing(x): os._exit(0)",
    "import sys\ndef nothing(x): sys.exit(0)",
    "import os\nos._exit(0)",
    "import os\ndef nothing(x): os.closerange(0, 100)",
    "import json\njson.dumps = lambda *a, **k: 'true'\ndef nothing(x): return Any",
    "class Equal:\n    def __eq__(self, other): return True\n    __hash__ = None\n"
    "def nothing(x): return Equal()",
    "import os\ndef nothing(x):\n    os.write(3, b'[true]' * 10_000); os._exit(0)",
    "import sys\nsys.modules['__main__'] = sys.modules['json'] = None\ndef nothing(x): return 0",
    'import os\nfor n in range(3, 64):\n    try: os.write(n, b\'{"fault": ""}\')\n'
    "    except OSError: pass\nos._exit(0)",
    "import gc\ndef nothing(x):\n    for each in gc.get_objects():\n"
    "        if type(each) is dict and 'expected' in each: return each['expected']\n    return 0",
]


def test_no_verdict_can_be_forged() -> None:
    found = verdicts([(NOTHING, fenced(code)) for code in FORGED])
    assert [verdict["reward"] for verdict in found] == [0.0] * len(FORGED)


ADVERSARIAL = [
    "`" * 100_000,
    "```\n" * 25_000,
    "```python\n" + "x = [" * 20_000 + "\n```",
    "```python\n" + "(" * 99_000 + "\n```",
    "```python\nprint('3'" + "+''" * 30_000 + ")\n```",
    fenced("print('3\\n' * 50_000)"),
    fenced("print('9' * 100_000)"),
    fenced("print('1e99999999')"),
    fenced("print(*['1'] * 50_000)"),
    fenced("import sys\nsys.stdout.buffer.write(bytes(range(256)) * 400)"),
    fenced("x = 0\n" * 16_000),
    "<think>" * 14_000,
]


def test_long_hostile_responses_are_verified_all_the_same() -> None:
    found = verdicts([(SUM, text) for text in ADVERSARIAL] + [TABLE[0][:2]])
    assert [verdict["reward"] for verdict in found] == [0.0] * len(ADVERSARIAL) + [1.0]


HOSTILE_FUNCTIONS = [
    "def twice(xs): return [" * 1 + "xs] * 200_000",
    "def twice(xs):\n    x = []\n    for _ in range(100_000): x = [x]\n    return x",
    "def twice(xs):\n    x = []; x.append(x); return x",
    "def twice(xs): return '9' * 3_000_000",
    "def twice(xs): return 10 ** 4_000",
    "def twice(xs): return float('nan')",
    "def twice(xs): return object()",
    "def twice(xs): return '\\ud800'",
    "def twice(xs): raise ValueError('\\ud800')",
]


def test_hostile_values_are_wrong_and_no_more() -> None:
    found = verdicts([(TWICE, fenced(code)) for code in HOSTILE_FUNCTIONS] + [TABLE[19][:2]])
    assert [verdict["reward"] for verdict in found] == [0.0] * len(HOSTILE_FUNCTIONS) + [1.0]


def test_a_program_that_never_ends_is_too_slow() -> None:
    slow = verdict(SUM, fenced("while 1: 1"), unit_test_timeout_secs=1)
    assert (slow["reward"], slow["result"]) == (0.0, [-3])
    assert slow["metadata"]["error_message"] == "Time Limit Exceeded"


def test_a_program_that_never_ends_holds_nobody_up() -> None:
    async def main():
        settings = {"num_processes": 2, "unit_test_timeout_secs": 10 * HANG_S}
        async with mount({"code_gen": making(CodeGen, **OURS, **settings)}) as peers:
            endless = {
                **SUM,
                "response": make_response("m", [message_item(fenced("while 1: 1"))], None),
            }
            right = {**SUM, "response": make_response("m", [message_item(TABLE[0][1])], None)}
            slow = asyncio.create_task(peers.call("code_gen", "/verify", endless, dict))
            await asyncio.sleep(0)
            quick = await peers.call("code_gen", "/verify", right, dict)
            assert not slow.done()
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
            return quick

    assert asyncio.run(main())["reward"] == 1.0


def test_memory_and_output_have_limits() -> None:
    codes = ["x = bytearray(10**10)", "while True: print('x' * 10_000)"]
    found = verdicts([(SUM, fenced(code)) for code in codes])
    assert [verdict["result"] for verdict in found] == [[-4], [-2]]
    assert found[0]["metadata"]["error"] == "MemoryError()"
    assert found[1]["metadata"]["error_message"] == "Output Limit Exceeded"


def test_the_result_says_what_went_wrong() -> None:
    found = verdict(SUM, fenced("print(3)"))
    assert found["result"] == [True, -2]
    assert found["metadata"] == {
        "output": "3\n",
        "error_code": -2,
        "error_message": "Wrong answer at output_line_idx=0: 3 != 10",
        "inputs": "5 5\n",
        "expected": "10\n",
    }
    assert found["extracted_model_code"] == "print(3)"
    assert found["difficulty"] == "easy" and found["unit_tests_time_taken"] > 0


THOUGHT = {
    "type": "reasoning",
    "id": "r",
    "summary": [{"type": "summary_text", "text": "<think><think>"}],
}


@pytest.mark.parametrize(
    ("items", "violation"),
    [
        ([message_item(TABLE[0][1])], 0.0),
        ([message_item("</think>" + TABLE[0][1])], 1.0),
        ([THOUGHT, message_item(TABLE[0][1])], 1.0),
    ],
)
def test_reasoning_in_the_wrong_place_takes_the_penalty(items, violation) -> None:
    found = verdict(SUM, items, reasoning_format_penalty=-0.5)
    assert found["reasoning_format_violation_rate"] == violation
    assert found["reward"] == (-0.5 if violation else 1.0)


@pytest.mark.parametrize("name", ["add", "gcd", "sorted", "reduce"])
def test_a_function_that_the_code_does_not_have_is_not_found_elsewhere(name: str) -> None:
    task = row(["4\n6"], ["2"], name)
    assert verdict(task, fenced("x = 1"))["reward"] == 0.0
    own = f"def {name}(a, b): return functools.reduce(math.gcd, Counter([a, b]))"
    assert verdict(task, fenced(own))["reward"] == 1.0


@pytest.mark.parametrize(
    ("code", "limit_s", "result", "num_runs"),
    [("print(3)", HANG_S, True, 1), ("import time; time.sleep(9999)", 0.5, -3, 2)],
)
def test_what_ran_out_of_time_without_having_computed_is_run_once_more(
    monkeypatch: pytest.MonkeyPatch, code: str, limit_s: float, result: bool | int, num_runs: int
) -> None:
    run, programs = Sandbox.run, []

    async def counted(sandbox, program, **how):
        programs.append(program)
        return await run(sandbox, program, **how)

    monkeypatch.setattr(Sandbox, "run", counted)
    found = verdict(row(["1 2"], ["3"]), fenced(code), unit_test_timeout_secs=limit_s)
    assert found["result"] == [result] and programs.count(code) == num_runs


def test_fast_mode_runs_the_first_tests_only() -> None:
    task = row(["1"] * 5, ["1"] * 4 + ["2"])
    text = fenced("print(input())")
    assert verdict(task, text)["result"] == [True] * 4 + [-2]
    assert verdict(task, text, fast_mode=True)["result"] == [True] * 3
    assert verdict(task, text, fast_mode=True, num_fast_tests=1)["result"] == [True]


def packed(tests):
    return base64.b64encode(zlib.compress(json.dumps(tests).encode())).decode()


def test_packed_tests_are_the_same_tests() -> None:
    tests = SUM["verifier_metadata"]["unit_tests"]
    task = {**SUM, "verifier_metadata": {"unit_tests": {"packed": packed(tests)}}}
    assert verdict(task, TABLE[0][1])["result"] == [True, True]


@pytest.mark.parametrize(
    "broken", ["", "!", "AAAA", packed([]), packed({"inputs": ["1"], "outputs": []})]
)
def test_packed_tests_that_are_none_are_no_verdict(broken) -> None:
    task = {**SUM, "verifier_metadata": {"unit_tests": {"packed": broken}}}
    with pytest.raises(TaskError, match="packed has no tests"):
        verdict(task, TABLE[0][1])


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"unit_tests": {}},
        {"unit_tests": {"inputs": [], "outputs": []}},
        {"unit_tests": {"inputs": ["1"], "outputs": []}},
        {"unit_tests": {"inputs": [1], "outputs": ["1"]}},
        {"unit_tests": {"inputs": ["1 2"], "outputs": ["3"], "fn_name": "add"}},
        {"unit_tests": {"inputs": ["1"], "outputs": ["three"], "fn_name": "add"}},
    ],
)
def test_a_row_that_cannot_be_verified_is_refused(metadata) -> None:
    async def main():
        async with mount({"code_gen": making(CodeGen, **OURS)}) as peers:
            task = {"responses_create_params": {"input": "?"}, "verifier_metadata": metadata}
            await peers.call("code_gen", "/verify", {**task, "response": {}}, dict)

    with pytest.raises(TaskError):
        asyncio.run(main())


def test_packages_can_be_given(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "plus.py").write_text("def plus(a, b): return a + b")
    text = fenced("from plus import plus\nprint(plus(*map(int, input().split())))")
    assert verdict(SUM, text)["result"] == [-4]
    assert verdict(SUM, text, packages_dir=tmp_path)["reward"] == 1.0


def test_the_server_tells_what_holds() -> None:
    async def main():
        async with mount({"code_gen": making(CodeGen, **OURS)}) as peers:
            return await peers.describe("code_gen")

    found = asyncio.run(main())
    assert found["sandbox"]["limits"] is True and "no network" in found["sandbox"]
    assert found["reverify"] == "stateless" and found["settings"] == {}


CONFIG = (
    "+config_paths=[resources_servers/code_gen/configs/code_gen.yaml,"
    "responses_api_models/local_model/configs/local_model.yaml]"
)


def test_unsafe_code_is_one_word_on_the_command_line() -> None:
    def given(*more):
        return load_config([CONFIG, *more], CollectConfig).instances["code_gen"].settings

    assert given("+unsafe_code=true")["unsafe_code"] is True
    assert "unsafe_code" not in given() and "unsafe_code" not in given("+unsafe_code=false")
    own = "+code_gen.resources_servers.code_gen.unsafe_code=true"
    assert given(own)["unsafe_code"] is True
    with pytest.raises(ConfigError, match="unsafe_code"):
        given("+unsafe_code=perhaps")


def test_an_ng_run_that_is_up_is_not_told_by_a_collector() -> None:
    async def main():
        config = load_config(["+unsafe_code=true"], CollectConfig)
        async with reach(config, print):
            pass

    with pytest.raises(ConfigError, match="unsafe_code: the servers are those of an ng_run"):
        asyncio.run(main())


def test_a_sandbox_that_fails_is_no_verdict(monkeypatch) -> None:
    server = CodeGen(CodeGen.Config(**OURS), None, "code_gen")

    async def main():
        async with mount({"code_gen": lambda peers, name: server}) as peers:
            monkeypatch.setattr("rollout_kit.serving.sandbox.keeper.START", "sys.exit(1)")
            for zygote in server._sandbox._zygotes._idle:
                await zygote.kill()
            asked = {**SUM, "response": make_response("m", [message_item(TABLE[0][1])], None)}
            await peers.call("code_gen", "/verify", asked, dict)

    with pytest.raises(VerifyError, match="the sandbox failed") as caught:
        asyncio.run(main())
    assert caught.value.retryable


def test_a_returned_value_with_too_many_levels_is_wrong() -> None:
    rules = sys.modules[CodeGen.__module__.replace(".app", ".rules")]
    value: list = []
    for _ in range(5_000):
        value = [value]
    run = SandboxRun("finished", b"", True, value, None, "", duration_s=0, cpu_s=0)
    judgement = rules.judge_run(rules.Case("1", "[]", "f", [1], []), run)
    assert judgement.details["error_message"] == "Wrong Answer"


@pytest.mark.parametrize(
    ("returned", "expected", "is_right"),
    [
        ("0.1 + 0.2", "0.3", True),
        ("3.00001", "3", True),
        ("3.0001", "3", False),
        ("[0.1 + 0.2]", "[0.3]", True),
        ("[[0.1 + 0.2], [1.0]]", "[[0.3], [1]]", True),
        ("[[0.1 + 0.2], [1.001]]", "[[0.3], [1]]", False),
        ("[0.1 + 0.2, 1]", "[0.3]", False),
        ("[0.1 + 0.2, '1']", "[0.3, 1]", False),
        ("[0.1 + 0.2, True]", "[0.3, 0.9999999999]", False),
        ("{'a': [0.1 + 0.2]}", '{"a": [0.3]}', True),
        ("{'b': [0.1 + 0.2]}", '{"a": [0.3]}', False),
        ("[float('nan'), 0.1 + 0.2]", "[NaN, 0.3]", True),
        ("[float('inf'), 0.1 + 0.2]", "[Infinity, 0.3]", True),
        ("[float('inf'), 0.1 + 0.2]", "[-Infinity, 0.3]", False),
        ("__import__('fractions').Fraction(1, 3), 1", "[0.3333333, 1]", True),
        ("[10**9 + 6, 0.1 + 0.2]", "[1000000007, 0.3]", False),
        ("[10**9 + 6.0, 0.1 + 0.2]", "[1000000007, 0.3]", False),
        ("None", "0.0", False),
        ("'3.0'", "3", False),
        ("'3.0'", "3.0", True),
        ("3", '"3"', False),
        ("3.0", '"3"', True),
        ("10**5000", "1" + 5000 * "0", True),
        ("[-10**5000]", f"[-1{5000 * '0'}]", True),
        ("10**5000 + 1", "1" + 5000 * "0", False),
        ("1e308 * 10", "1" + 5000 * "0", False),
        ("'three'", '"three"', True),
        ("float('nan')", "NaN", True),
        ("[float('nan')]", "[NaN]", True),
        ("float('inf')", "Infinity", True),
        ("-float('inf')", "Infinity", False),
        ("[(1, 2)]", "[[1, 2]]", True),
        ("{1: 2}", '{"1": 2}', True),
        ("{1, 2}", "[1, 2]", False),
        ("10**15 + 1", "1" + 15 * "0", False),
        ("__import__('fractions').Fraction(1, 3)", "0.3333333", True),
    ],
)
def test_returned_values_are_compared_like_nemo_gyms(returned, expected, is_right) -> None:
    task = row(["1"], [expected], "f")
    assert verdict(task, fenced(f"def f(x): return {returned}"))["reward"] == float(is_right)


def test_code_may_import_numpy_and_what_is_named_but_nothing_else() -> None:
    pytest.importorskip("numpy")
    code = "import numpy as np\ndef f(x): return [np.int64(x), np.True_, np.float64(0.5)]"
    task = row(["3"], ["[3, true, 0.5]"], "f")
    assert verdict(task, fenced(code))["reward"] == 1.0
    assert verdict(task, fenced(code), packages=[])["reward"] == 0.0
    if may_isolate():
        other = fenced(f"import pydantic\n{code}")
        assert verdict(task, other, unsafe_code=False)["reward"] == 0.0


def test_arguments_may_be_longer_than_a_machine_word() -> None:
    task = row([str(10**30)], [str(2 * 10**30)], "twice")
    assert verdict(task, fenced("def twice(x): return 2 * x"))["reward"] == 1.0
