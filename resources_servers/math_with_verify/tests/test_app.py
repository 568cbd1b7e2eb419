import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest
from support import HANG_S, limit_only, skip_unless_installed

from rollout_kit import ConfigError, TaskError, make_response, message_item
from rollout_kit.api.testing import ScriptedModel, making, mount
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

skip_unless_installed("math_verify")

MathWithVerify = load("resources_servers", "math_with_verify")
ROWS = [
    orjson.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "example.jsonl").read_bytes().splitlines()
]
CASES = [
    orjson.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_bytes().splitlines()
]
HANG = r"(x+y+z+w)^{300}"
"""Four million terms, which sympy expands to compare them."""

TOWERS = [
    r"2^{3^{4^{5}}}+x",
    "((9!)!)!",
    "9**9**9**9",
    r"\sqrt{9^{9^{9}}}",
    r"e^{10^{10^{10}}}",
    r"\binom{10^{6}}{500000}",
    r"\frac{2^{10^{9}}}{3}",
    r"1.5^{10^{12}}",
    r"3^{x^{9^{9^{9}}}}",
    r"\log(10^{10^{9}})",
    "((((9^9)^9)^9)^9)^9",
    r"10^{-10^{10}}",
    "100000000!",
]
"""Numbers with more digits than can be computed."""


def row(expected):
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "?"}]},
        "expected_answer": expected,
    }


async def asked(server, task, text):
    with entered(Session()):
        await server.handle("/seed_session", orjson.dumps(task))
        response = make_response("m", [message_item(text)] if text else [], None)
        return await server.handle("/verify", orjson.dumps({**task, "response": response}))


def verdicts(pairs, **settings):
    settings = {"verify_timeout_s": HANG_S, "num_verify_workers": 1, **settings}

    async def run():
        server = MathWithVerify(MathWithVerify.Config(**settings), None, "math_with_verify")
        await server.start()
        try:
            return [await asked(server, task, text) for task, text in pairs]
        finally:
            await server.stop()

    return asyncio.run(run())


def test_the_gold_outputs_score_full_reward_and_nothing_scores_zero():
    results = verdicts(
        [(task, task["gold_output"]) for task in ROWS] + [(task, "") for task in ROWS]
    )
    assert [result.reward for result in results] == [1.0] * len(ROWS) + [0.0] * len(ROWS)
    assert all(result.extracted_answer is None for result in results[len(ROWS) :])


def test_each_case_has_its_reward():
    found = verdicts([({**row(""), **case["row"]}, case["answer"]) for case in CASES])
    judged = zip(CASES, found, strict=True)
    assert [case for case, verdict in judged if verdict.reward != case["reward"]] == []


EQUAL = [
    ("1/2", r"\frac{1}{2}"),
    (r"\frac12", "0.5"),
    (r"\frac{1}{3}", "0.333333"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"2\sqrt{3}", "2√3"),
    (r"2\pi", "2pi"),
    (r"\{1,2\}", "2, 1"),
    ("(1, 2)", r"\left(1,2\right)"),
    (r"(-\infty, 3]", r"(-\infty,3]"),
    ("5", "x = 5"),
    ("y=2x+1", "2x+1=y"),
    (r"x \le 3", "3 ≥ x"),
    (r"(-\infty, 3]", "x ≤ 3"),
    (r"(2, \infty)", "2 < x"),
    (r"[-2, 7)", r"-2 \le x < 7"),
    (r"x \ge 2", r"[2, \infty)"),
    (r"\begin{pmatrix}0.5\\2\end{pmatrix}", r"\begin{pmatrix}\frac12\\2\end{pmatrix}"),
    (r"\{\frac{1}{3}, 2\}", r"\{0.333333, 2\}"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"\text{(C)}", "C"),
    ("10000", "10^4"),
    (r"1\frac{1}{2}", r"\frac32"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
    ("3+4i", "4i+3"),
]
DIFFERENT = [
    (r"\frac{1}{3}", "0.33"),
    ("[0,1)", "(0,1]"),
    (r"\{1,2\}", "1"),
    ("x+1", "x-1"),
    (r"\text{Monday}", "Tuesday"),
    ("C", "D"),
    (r"(-\infty, 3]", "x < 3"),
    (r"[2, \infty)", "x = 2"),
    (r"[-2, 7)", r"-2 \le x \le 7"),
    (r"\begin{pmatrix}0.5\\2\end{pmatrix}", r"\begin{pmatrix}0.25\\2\end{pmatrix}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}"),
    (r"(1.6 \times 10^{-19}, 1)", r"(1.7 \times 10^{-19}, 1)"),
    (r"(0.0000001, 1)", r"(0.0000002, 1)"),
    (r"\infty", r"-\infty"),
    ("5", "5 million"),
    ("42", "4 2"),
    ("5", "\\infty"),
    ("5", "}{"),
    ("5", r"\frac{"),
]


def test_equal_values_in_other_notation_are_right_and_other_values_are_wrong():
    pairs = [(row(expected), f"\\boxed{{{answer}}}") for expected, answer in EQUAL + DIFFERENT]
    rewards = [result.reward for result in verdicts(pairs)]
    judged = dict(zip(EQUAL + DIFFERENT, rewards, strict=True))
    assert {pair for pair, reward in judged.items() if reward == 1.0} == set(EQUAL)


@pytest.mark.parametrize(
    "text, answer",
    [
        ("work\n#### 42", "42"),
        ("#### $1,234.50.\n", "$1,234.50"),
        ("#### 1\n#### 2", "2"),
        ("So the answer is 42.", "42"),
        ("The answer is 3.14. It is pi.", "3.14"),
        ("**Final Answer:** 42", "42"),
        ("The final answer is: $\\frac{1}{2}$. I hope it is correct.", "\\frac{1}{2}"),
        ("The answer to the first question is 17 apples.", "17 apples"),
        (r"The answer is $\boxed{42}$.", "42"),
        (r"\boxed{1}, no: \boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\fbox{7}", "7"),
        (r"$\boxed 7$", "7"),
        (r"\boxed{$5$.}", "5"),
        (r"\boxed{7} or rather \boxed{8", None),
        (r"\boxed{}", None),
        ("It might be 42", None),
        ("Final Answer: The final answer is $x = 5$. I hope it is correct.", "x = 5"),
        ("We get \\boxed{255}. The final answer is 10,455. I hope it is correct.", "10,455"),
        ("The final answer is \\boxed{5}. I hope it is correct.", "5"),
        ("The answer is 17. Wait, the answer is 18.", "18"),
        ("The answer is 18. I checked: the answer is correct.", "18"),
        ("Answer: there are 12 ways, since $12 = 3 \\cdot 4$.", "12 ways"),
        ("Answer: The cost is $\\$5.50$.", "\\$5.50"),
        ("Answer: Evelyn is the fastest.", "Evelyn is the fastest"),
        ("The answer is **72**.", "72"),
        ("The answer is about 72 km because of the wind.", "72 km"),
        ("The answer is $50$ %.", "50 %"),
        ("<answer>18</answer>", "18"),
        ("<answer>The answer is 18.</answer>", "18"),
        ("<think>\\boxed{17}</think>\n<answer>\n18\n</answer>", "18"),
        ("<answer>17</answer> No: \\boxed{18}", "18"),
        ("<answer></answer> #### 18", "18"),
        ("<answer>18", None),
        ("work\n\n**Final Answer**\n\n18 apples.\n", "18 apples"),
        ("work\n## Answer\n\n$$\nx^2\n$$\n", "x^2"),
        ("Answer $9$", "9"),
        ("The final answer\nsurprises me", "surprises me"),
        ("", None),
    ],
)
def test_the_answer_is_found_where_policies_put_it(text, answer):
    [result] = verdicts([(row("x"), text)], fast_mode=True)
    assert result.extracted_answer == answer


@pytest.mark.parametrize(
    "expected, answer, reward",
    [
        ("42", "42.0", 1.0),
        (42, "42", 1.0),
        (0.5, ".50", 1.0),
        ("1,234", "1234", 1.0),
        ("1234567", "1,234,567", 1.0),
        ("1234", r"1{,}234", 1.0),
        ("$5.50", "5.5", 1.0),
        ("5.5", r"\$5.50", 1.0),
        ("12", "12 apples", 1.0),
        ("10", r"10\text{ cm}^2", 1.0),
        ("30", r"30^\circ", 1.0),
        ("-3", "− 3", 1.0),
        ("50", r"50\%", 1.0),
        ("0.5", "50%", 1.0),
        ("$18$", "18", 1.0),
        ("2 + 3 = 5\n#### 5", "5", 1.0),
        (r"we get \boxed{5}", "5", 1.0),
        (r"\dfrac{1}{2}", r"\frac{1}{2}", 1.0),
        ("42", "41", 0.0),
        ("42", "42.1", 0.0),
        ("1234", "1.234", 0.0),
        ("5", "5 million", 0.0),
        ("3", "3 and 4", 0.0),
    ],
)
def test_text_and_plain_numbers_are_compared_without_a_worker(expected, answer, reward):
    [result] = verdicts([(row(expected), f"\\boxed{{{answer}}}")], fast_mode=True)
    assert result.reward == reward


@pytest.mark.parametrize(
    "expected, text, answer",
    [
        ("1, 2", r"$\boxed{1}$ and $\boxed{2}$", "1, 2"),
        (r"\{1, 2\}", r"$x = \boxed{1}$ or $x = \boxed{2}$", "1, 2"),
        (r"\pm 1", r"\boxed{1}, \boxed{-1}", "1, -1"),
        (r"\boxed{1} and \boxed{2}", r"\boxed{1}\boxed{2}", "1, 2"),
        ("1, 2", r"\boxed{1}, \boxed{2}, thus \boxed{2, 1}", "2, 1"),
        ("1, 2", r"\boxed{1} or rather \boxed{2}", "2"),
        ("1, 2", rf"\boxed{{1}} {'and so on ' * 10} \boxed{{2}}", "2"),
        ("(1, 2)", r"\boxed{1}, \boxed{2}", "2"),
        ("1,234", r"\boxed{1}, \boxed{234}", "234"),
        ("2", r"\boxed{1} and \boxed{2}", "2"),
    ],
)
def test_adjacent_boxes_are_a_list_where_the_expected_answer_is_one(expected, text, answer):
    [result] = verdicts([(row(expected), text)], fast_mode=True)
    assert result.extracted_answer == answer


def test_the_result_keeps_the_row_and_says_what_was_found():
    [result] = verdicts([({**row("1/2"), "question": "?", "level": 3}, r"\boxed{0.5}")])
    assert (result.reward, result.library_reward, result.extracted_answer) == (1.0, 1.0, "0.5")
    assert (result.verify_timed_out, result.level, result.expected_answer) == (False, 3, "1/2")


def test_an_answer_that_hangs_the_library_scores_zero_at_the_deadline_and_the_next_one_works(
    monkeypatch,
):
    limit_only(HANG, monkeypatch)
    pairs = [(row("x+5"), f"\\boxed{{{HANG}}}"), (row(r"\frac{x}{2}"), r"\boxed{0.5x}")]
    hung, following = verdicts(pairs, verify_timeout_s=0.5)
    assert (hung.reward, hung.verify_timed_out) == (0.0, True)
    assert (following.reward, following.verify_timed_out) == (1.0, False)


@pytest.mark.parametrize("tower", TOWERS)
def test_a_tower_is_found_before_it_is_computed(monkeypatch, tower):
    limit_only(tower, monkeypatch)
    pairs = [(row("x+5"), f"\\boxed{{{tower}}}"), (row(tower), r"\boxed{0.5x}")]
    pairs += [(row(tower), f"\\boxed{{{tower}}}")]
    found = verdicts(pairs, verify_timeout_s=2)
    assert [verdict.verify_timed_out for verdict in found] == [False] * 3
    assert [verdict.reward for verdict in found] == [0.0, 0.0, 1.0]


def test_large_numbers_that_can_be_computed_are():
    pairs = [
        (r"2^{2^{10}}", r"4^{512}"),
        ("2004!", r"2004 \cdot 2003!"),
        (r"2^{1000}-1", "2^1000-1"),
    ]
    pairs += [(r"\binom{100}{50}", r"\frac{100!}{50! 50!}"), (r"10^{100}", r"(10^{50})^2")]
    found = verdicts([(row(one), f"\\boxed{{{other}}}") for one, other in pairs])
    assert [verdict.reward for verdict in found] == [1.0] * len(pairs)


def test_many_answers_at_once_are_all_judged():
    async def run():
        config = MathWithVerify.Config(verify_timeout_s=HANG_S)
        server = MathWithVerify(config, None, "math_with_verify")
        await server.start()
        try:
            return await asyncio.gather(
                *(
                    asked(server, row(rf"\frac{{{n}}}{{7}}"), rf"\boxed{{\frac{{{2 * n}}}{{14}}}}")
                    for n in range(100)
                )
            )
        finally:
            await server.stop()

    assert [result.reward for result in asyncio.run(run())] == [1.0] * 100


def test_an_endless_answer_costs_nothing():
    started = time.monotonic()
    texts = [r"\boxed{" + "1+" * 1_000_000 + "1}", r"\boxed{" * 300_000, "answer is " * 300_000]
    texts += [r"\boxed{" + "1" * 190_000 + "}", "<answer>" + "A is " * 39_000 + "\n</answer>"]
    texts += [r"\boxed{" + r"\text{" * 30_000 + "}" * 30_000 + "}", "answer is " + "$1$," * 40_000]
    results = verdicts([(row("5"), text) for text in texts], fast_mode=True)
    assert [result.reward for result in results] == [0.0] * len(texts)
    assert time.monotonic() - started < HANG_S  # going over it again for each brace takes hours


@pytest.mark.parametrize("expected", [None, ["5"]])
def test_a_row_without_a_usable_expected_answer_is_refused_when_its_session_is_seeded(expected):
    with pytest.raises(TaskError, match="expected_answer"):
        verdicts([(row(expected), "5")], fast_mode=True)


def test_without_math_verify_the_server_says_how_to_get_it(tmp_path):
    # a worker that finds a broken math_verify first, as if there were none
    (tmp_path / "math_verify.py").write_text("raise ModuleNotFoundError('No module named that')")
    script = """
import asyncio
from rollout_kit.serving.registry import load
cls = load("resources_servers", "math_with_verify")
asyncio.run(cls(cls.Config(), None, "mine").start())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ConfigError.__name__ in done.stderr
    assert "pip install 'rollout-kit[math]'" in done.stderr and "mine" in done.stderr


def test_a_stored_response_can_be_verified_again():
    server = MathWithVerify(MathWithVerify.Config(), None, "math_with_verify")
    assert server.describe()["reverify"] == "stateless"


JUDGE = {
    "should_use_judge": True,
    "judge_model_server": {"type": "responses_api_models", "name": "judge_model"},
    "fast_mode": True,
}


@pytest.mark.parametrize(
    "text, said, reward, library_reward, num_asked",
    [
        (r"\boxed{7}", [], 1.0, 1.0, 0),
        ("seven, I say", ["yes [[A=B]]", "yes [[A=B]]"], 1.0, 0.0, 2),
        ("seven, I say", ["yes [[A=B]]", "no [[A!=B]]"], 0.0, 0.0, 2),
        ("eight", ["no [[A!=B]]"], 0.0, 0.0, 1),
        ("", [], 0.0, 0.0, 0),
    ],
)
def test_a_judge_is_asked_in_both_orders_where_no_equality_is_found(
    text, said, reward, library_reward, num_asked
):
    model = ScriptedModel(said)
    asked = {"input": [{"role": "user", "content": "3 + 4?"}]}
    task = {"responses_create_params": asked, "expected_answer": 7}

    async def main():
        servers = {
            "judge_model": lambda peers, name: model,
            "math": making(MathWithVerify, **JUDGE),
        }
        async with mount(servers) as peers:
            response = make_response("m", [message_item(text)], None)
            return await peers.call("math", "/verify", {**task, "response": response}, dict)

    verdict = asyncio.run(main())
    assert (verdict["reward"], verdict["library_reward"]) == (reward, library_reward)
    assert len(model.calls) == len(verdict.get("judge_evaluations", [])) == num_asked
    prompts = [call["input"][0]["content"] for call in model.calls]
    assert all("3 + 4?" in prompt for prompt in prompts)
    if num_asked == 2:
        assert prompts[0].index("\n7\n") < prompts[0].index(text)
        assert prompts[1].index(text) < prompts[1].index("\n7\n")


def test_a_judge_that_nobody_names_is_a_mistake():
    with pytest.raises(ConfigError, match="set judge_model_server"):
        MathWithVerify(MathWithVerify.Config(should_use_judge=True), None, "math")
