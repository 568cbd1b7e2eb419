"""Texts that scorers evaluate: right answers keep their score, and hostile ones change nothing."""

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from held import find_held
from support import HANG_S, NO_NAMESPACES, may_isolate, skip_unless_installed

from rollout_kit import TaskError, make_response, message_item
from rollout_kit.errors import ConfigError
from rollout_kit.serving.process_tree import family
from rollout_kit.serving.registry import load
from rollout_kit.serving.sandbox.limits import SandboxLimits
from rollout_kit.serving.sandbox.sandbox import Sandbox, with_requirements
from rollout_kit.session import Session, entered

skip_unless_installed("reasoning_gym")
pytestmark = pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES)

FOLDER = Path(__file__).parents[1]
ReasoningGym = load("resources_servers", "reasoning_gym")
EVALUATED = sorted(sys.modules[ReasoningGym.__module__].EVALUATED)
PACKAGES = with_requirements("reasoning-gym")
LIMITS = SandboxLimits(time_s=HANG_S, cpu_s=1, memory_mb=4096)
"""A verdict takes a fiftieth of this CPU time."""


@pytest.fixture(scope="module")
def rows():
    """Four rows of each family."""
    command = [sys.executable, FOLDER / "generate.py", *EVALUATED, "--size", "4", "--seed", "5"]
    lines = subprocess.run(command, capture_output=True, check=True).stdout.splitlines()
    return [orjson.loads(line) for line in lines]


@pytest.fixture(scope="module")
def opened():
    """A sandbox with the task, and the loop that it runs in."""
    with asyncio.Runner() as runner:
        sandbox = Sandbox(2, packages=PACKAGES, task=FOLDER / "evaluating.py")
        runner.run(sandbox.start())
        yield runner, sandbox
        runner.run(sandbox.close())


def scores(opened, pairs):
    runner, sandbox = opened

    async def run():
        calls = [sandbox.call("score", row, answer, limits=LIMITS) for row, answer in pairs]
        return [found.value for found in await asyncio.gather(*calls)]

    return runner.run(run())


def family_of(row):
    return row["metadata"]["source_dataset"]


MATHEMATICS = [
    *("24", "-7/2", "1e3", "0.5", "3*8 - 2", "(1 + 2)*3", "2**10", "5!", "7 % 4", "sqrt(16)"),
    *("x**2", "x^2", "2x", "x*(x + 1)", "Abs(x)", "log(abs(x)) + C", "sin(x)/cos(x)", "exp(x)*x"),
    *("pi", "E", "I", "oo", "nan", "1/0", "zoo", "x < 3", "Eq(x, 1)", "(1, 2)", "[1, 2]", "erf(x)"),
    *("binomial(5, 2)", "max(1, 2)", "round(2.5)", "0.2[1]", "f(x)", "Integral(x, x)", "x y", ""),
    *("[1, 2, 3]", "['a', 'b']", "[['0', '1'], ['1', '0']]", "0x1f", "['3', '5']", "[1.5, 2]", "?"),
    *("1_000", "α + β", "x₁", "asinh(x/2)", "atan(x)/2", "Piecewise((1, True))", "Rational(1, 3)"),
]


def test_mathematics_has_the_score_that_the_package_gives(opened, rows):
    from reasoning_gym import get_score_answer_fn

    pairs = [(row, str(row["answer"])) for row in rows if row["answer"] is not None]
    pairs += [(row, answer) for row in rows[::4] for answer in MATHEMATICS]
    other = {family_of(row): row for row in reversed(rows)}
    pairs += [(other[family_of(row)], str(row["answer"])) for row in rows]
    wanted = []
    for row, answer in pairs:
        try:
            wanted.append(min(max(get_score_answer_fn(family_of(row))(answer, row), 0.0), 1.0))
        except Exception:
            wanted.append(0.0)
    found = scores(opened, pairs)
    differing = [
        (family_of(row), answer, score, right)
        for (row, answer), score, right in zip(pairs, found, wanted, strict=True)
        if score != right
    ]
    assert differing == []
    assert wanted.count(1.0) >= len(rows) * 3 // 4


MARK = "/tmp/left-by-an-answer"

BUILTINS = "(pi for pi in [1]).gi_frame.f_builtins"
NAMES = "[ex.name + ec.name]"  # how a text without quotes spells `exec`

HOSTILE = [
    f"{BUILTINS}{NAMES}({{code}})",
    f"{BUILTINS}[exec.name]({{code}})",
    "__import__('os').system({code})",
    "eval({code})",
    "exec(chr(105) + chr(109))",
    "getattr(sympify, f.name)",
    "(lambda: exec({code}))()",
    "[exec({code}) for x in [1]]",
    "{{x: exec({code}) for x in [1]}}",
    "sympify({code})",
    "S({code})",
    "parse_expr({code})",
    "lambdify(x, {code})(1)",
    "Symbol.__class__.__base__",
    "Symbol('x').__class__.__mro__[1].__subclasses__()",
    "f'{{exec({code})}}'",
    "x.subs(x, {code})",
    "(x := {code})",
    "open({code}).read()",
    "breakpoint()",
    "globals()",
    "__builtins__",
    "ｅｖａｌ({code})",
    "help()",
    "pi.__init__.__globals__",
    "[exec({code})]",
    "[[{code}][0].__class__]",
    "1 if exec({code}) else 2",
    "Function({code})(x)",
    "factorial(factorial(factorial(9)))",
    "9**9**9**9",
    "(" * 300 + ")" * 300,
    "-" * 100_000 + "1",
    "x" * 200_000,
]

CODE = f"\"open('{MARK}', 'w').write('x')\""


def hostile_answers():
    return [each.replace("{{", "{").replace("}}", "}").replace("{code}", CODE) for each in HOSTILE]


def test_hostile_answers_change_no_other_verdict(opened, rows):
    """Seven honest answers stand among each hostile one, in the processes that it was in."""
    chosen = rows[::4]
    wrong = scores(opened, [(row, "I do not know") for row in chosen])
    for answer in hostile_answers():
        pairs = [(row, text) for row in chosen for text in (answer, "I do not know")]
        found = scores(opened, pairs)
        assert found[1::2] == wrong, answer
        # 0.05 is what countdown gives for the wrong numbers
        assert max(score or 0.0 for score in found[::2]) <= 0.05, answer
    assert not Path(MARK).exists()


def test_an_answer_gives_no_other_answer_a_reward(rows, monkeypatch):
    """The same through the server: one answer looks for a key and rewards all that follow."""
    monkeypatch.setenv("PLANTED_KEY", "sk-planted")
    steal = "__import__('os').environ and setattr(__import__('reasoning_gym'), 'score', 1)"
    attacks = [f"{BUILTINS}[exec.name]({steal!r})", steal, f"[{steal}]", f"({steal}, 24)"]

    async def run():
        server = ReasoningGym(ReasoningGym.Config(num_verify_workers=1), None, "reasoning_gym")
        await server.start()
        try:
            found = []
            for row in rows[::4]:
                for answer in (*attacks, *["I do not know"] * 7):
                    with entered(Session()):
                        await server.handle("/seed_session", orjson.dumps(row))
                        items = [message_item(f"<answer>{answer}</answer>")]
                        body = {**row, "response": make_response("m", items, None)}
                        found.append(await server.handle("/verify", orjson.dumps(body)))
            return found
        finally:
            await server.stop()

    assert max(verdict.reward for verdict in asyncio.run(run())) <= 0.05


TEXTS = {
    "bitwise_arithmetic": ("metadata", "problem"),
    "intermediate_integration": ("metadata", "integrand"),
    "simple_integration": ("metadata", "integrand"),
    "number_sorting": ("answer",),
    "polynomial_multiplication": ("answer",),
}
"""Texts of rows that scorers evaluate."""


def test_hostile_rows_change_no_other_verdict(opened, rows):
    honest = {family_of(row): row for row in rows}
    pairs = []
    for name, place in TEXTS.items():
        for text in hostile_answers():
            row = orjson.loads(orjson.dumps(honest[name]))
            inside = row
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = text
            pairs += [(row, "3"), (honest[name], str(honest[name]["answer"]))]
    found = scores(opened, pairs)
    assert set(found[1::2]) == {1.0}
    assert not any(found[::2]) and not Path(MARK).exists()


def test_the_families_that_are_evaluated_are_known(opened):
    runner, sandbox = opened
    asked = runner.run(sandbox.call("list_families", limits=LIMITS))
    assert asked.value == EVALUATED


def test_the_process_of_a_sandbox_holds_no_key(rows, monkeypatch):
    """A key in the environment of the server is in no process below it: not in the environment,
    the arguments or the memory."""
    key = f"sk-{random.getrandbits(64):x}-planted"
    monkeypatch.setenv("SOME_API_KEY", key)

    async def run():
        async with Sandbox(1, task=FOLDER / "evaluating.py", packages=PACKAGES) as sandbox:
            zygotes = [zygote._process.pid for zygote in sandbox._zygotes._idle]
            return [
                (pid, place)
                for zygote in zygotes
                for pid in family(zygote)
                for place in find_held(pid, [key])
            ]

    assert asyncio.run(run()) == []
    assert find_held(os.getpid(), [key])


def test_without_a_sandbox_the_rows_are_refused_by_name(rows, monkeypatch):
    async def refuse(self):
        raise ConfigError("no sandbox here")

    monkeypatch.setattr(Sandbox, "start", refuse)

    async def run(row):
        server = ReasoningGym(ReasoningGym.Config(num_verify_workers=1), None, "reasoning_gym")
        await server.start()
        try:
            with entered(Session()):
                await server.handle("/seed_session", orjson.dumps(row))
                response = make_response("m", [message_item("<answer>1</answer>")], None)
                body = orjson.dumps({**row, "response": response})
                return await server.handle("/verify", body)
        finally:
            await server.stop()

    countdown = next(row for row in rows if family_of(row) == "countdown")
    with pytest.raises(TaskError, match=r"'countdown' evaluates text.*no sandbox here"):
        asyncio.run(run(countdown))
    data = (FOLDER / "data/example.jsonl").read_bytes().splitlines()
    plain = next(row for row in map(orjson.loads, data) if family_of(row) not in EVALUATED)
    assert asyncio.run(run(plain)).reward < 1.0
