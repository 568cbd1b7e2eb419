"""No answer can make a shipped verifier fail: there is always a verdict, within its own limits."""

import asyncio
import faulthandler
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from itertools import cycle, product
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import HANG_S, OF_OTHERS

from rollout_kit.api.testing import making, mount
from rollout_kit.authoring.answers import build_hostile_texts, build_malformed_outputs
from rollout_kit.authoring.examination import make_judges, read_rows
from rollout_kit.config.instances import UNSAFE_CODE
from rollout_kit.responses import function_call_item, message_item
from rollout_kit.serving import registry
from rollout_kit.serving.transport.peers import Peers
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject

SERVERS = Path(__file__).resolve().parents[2] / "resources_servers"
ENVIRONMENTS = sorted({path.parent.name for path in SERVERS.glob("*/app.py")} - OF_OTHERS)
MEGABYTE = 1 << 20
Verify = Callable[[JsonObject, bytes], JsonObject]
"""Row and response → the verdict."""


def routes() -> Iterator[tuple[str, str]]:
    """Each server with the routes that verify."""
    for name in ENVIRONMENTS:
        code = (SERVERS / name / "app.py").read_text()
        has_groups = "def verify_group(" in code
        if has_groups:
            yield name, "/verify_group"
        if not has_groups or "def verify(" in code:
            yield name, "/verify"


ROUTES = list(routes())
LIMITS = {"verify_timeout_s": 1, "unit_test_timeout_secs": 1, "num_verify_workers": 1}
"""The verifiers' own limits; a verdict that needs longer is a verdict too."""

MORE_ROWS: dict[str, list[JsonObject]] = {
    "code_gen": [
        {"verifier_metadata": {"unit_tests": {"inputs": ["1"], "outputs": [out], "fn_name": name}}}
        for out, name in [("[1]", "f"), ("0.5", "f"), ('{"a": [0.5]}', "f"), ("1 0.5", None)]
    ],
    "instruction_following": [
        {"instruction_id_list": [id], "kwargs": [arguments]}
        for id, arguments in [
            ("detectable_format:json_format", {}),
            ("language:response_language", {"language": "de"}),
            ("change_case:english_capital", {}),
            ("keywords:frequency", {"keyword": "a", "frequency": 2, "relation": "at least"}),
            ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}),
            ("count:counting_composition", {"n_sent": 2, "n_words": 2}),
            ("copy:repeat_phrase", {"phrase": "a b c", "small_n": 2}),
            ("keywords:keyword_specific_position", {"keyword": "a", "n": 1, "m": 1}),
            ("detectable_format:sentence_hyphens", {}),
            ("last_word:last_word_sent", {"last_word": "a"}),
            ("first_word:first_word_sent", {"first_word": "a"}),
            ("keywords:palindrome", {}),
            ("keywords:no_adjacent_consecutive", {}),
            ("custom:mcq_count_length", {}),
            ("custom:csv_special_character", {}),
            ("format:emoji", {}),
            ("words:odd_even_syllables", {}),
            ("words:start_verb", {}),
            ("sentence:alliteration_increment", {}),
        ]
    ],
    "math_with_verify": [{"expected_answer": "\\frac{1}{3}"}, {"expected_answer": "[0, 1)"}],
    "mcqa": [
        {
            "options": [{"A": "a"}, {"B": "b"}],
            "expected_answer": "A",
            "grading_mode": mode,
            "template_metadata": {"output_regex": regex},
        }
        for mode in ("lenient_boxed", "lenient_answer_colon")
        for regex in (None, r"(\S+\s?)+$", r"answer is (.*)")
    ],
    "coherence_math": [{"expected_answer": gold} for gold in ("#### 4", "1/3", "no number")],
    "reasoning_gym": [
        {"question": "?", "answer": "1", "metadata": {"source_dataset": family}}
        for family in ("arc_agi", "countdown", "sudoku", "graph_color", "polynomial_equations")
    ],
    "string_match": [
        {"expected_answer": "0.5", "extraction_mode": extraction, "match_mode": match}
        for extraction in ("boxed", "final_answer", "last_line", "full_response")
        for match in ("normalised", "contains", "regex")
    ],
    "structured_outputs": [
        {"schema_str": schema, "schema_type": kind, "response_mode": mode}
        for schema in (
            '{"type": "object", "properties": {"a": {"type": "array", "items": {}}}}',
            '{"type": "array", "items": {"type": "object", "properties": {"a": {"type": "number"},'
            ' "b": {"type": "integer", "multipleOf": 0.01}}}}',
        )
        for kind in ("json", "yaml", "xml", "toml", "csv")
        for mode in ("text", "tool_call")
    ],
}
"""Rows in addition to the examples, for further branches of a verifier."""

FRAGMENTS = [
    *("\\boxed{", "{", "}", "\\frac{", "\\text{", "$", "\\(", "`", "**", ". ", " .", ", ", "####"),
    *("<answer>", "</answer>", "<guess>", "</guess>", "<action>hit</action>", "<think>", "Answer:"),
    *("the answer is ", "9", "1.", "1e", "-", "^", "1,", "٣", "½", "NaN", "Infinity", "1e999"),
    *("[", "]", '{"a":', '"', "\\", "\\u0000", "a: ", "- ", "&a ", "*a ", "<a>", "</a>", "a = "),
    *("a", "ß", "İ", "and", " ", "\t", "\n", "\n\n", "\r", "\u2028", "\x00", "\x1b", "\x85"),
    *("\ud800", "\udfff", "\U0001f600", "\u202e", "e\u0301", "𝟜", "***", "******", "A", "B", "C)"),
    *("```\n", "```python\n", "print(1)\n", "sqrt(", "**9", "!", "%", "0x", "\\\\", "A: "),
]
NUMBERS = (300, 5_001, 99_999)
"""How often a fragment is repeated."""

MARKS = [("\\boxed{", "}"), ("<answer>", "</answer>"), ("Answer: ", "\n"), ("#### ", ""), ("", "")]
CODE = [
    "def f(x):\n v = []\n for _ in range({n}): v = [v]\n return v",
    "def f(x):\n v = {{}}\n for _ in range({n}): v = {{'a': v}}\n return v",
    "def f(x): return [float('nan'), float('inf'), 10 ** {n}, '\\ud800', {{1: 2}}, b'', 1j]",
    "def f(x): return 10 ** {n}",
    "def f(x): return 'x' * {n}",
    "def f(x): return f(x)",
    "class E(BaseException):\n def __repr__(self): raise self\ndef f(x): raise E()",
    "print('9' * {n})",
    "print('[' * {n})\nprint('1e999', 'nan', '٣')",
    "import os\nos.write(1, bytes(range(256)) * ({n} // 256))",
    "import os\nos.write(3, b'{{\"value\": ' + b'[' * {n})",
    "import os\nos.write(3, b'{{\"value\": ' + b'9' * {n} + b'}}')",
    "import os\nos.write(3, b'{{\"value\": [' + b'[' * {n} + b']' * {n} + b']}}')",
    'import os\nos.write(3, b\'{{"error": [1], "value": "\\\\ud800"}}\')',
    "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "\x00",
    "\ud800",
    "(" * 5_000,
]

HEALTHY = list(HealthCheck)

counts = st.sampled_from([1, 1, 2, 3, 40, 250, 1_100, 4_301, 5_001, 100_000, MEGABYTE])
counts = counts | st.integers(200, 1_000)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Up to a megabyte of repeated fragments, in or between the marks of an answer."""
    run = st.tuples(st.sampled_from(FRAGMENTS) | st.text(min_size=1, max_size=3), counts)
    runs = draw(run.map(lambda one: [one]) | st.lists(run, max_size=4))
    text = "".join(fragment * number for fragment, number in runs)
    before, after = draw(st.sampled_from(MARKS))
    return f"{before}{text[:MEGABYTE]}{after}"


codes = st.builds(
    lambda code, number: f"```python\n{code.format(n=number)}\n```", st.sampled_from(CODE), counts
)
known = st.sampled_from(list(build_hostile_texts().values()))
names = st.sampled_from(["add", "get_weather", "extract_synonym_values", "f", "email_send_email"])


def as_response(words: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """A message with these words, sometimes after a call with other such words as arguments."""
    message = st.builds(lambda text: [message_item(text)], words)
    call = st.builds(lambda *given: [function_call_item(*given)], names, words)
    outputs = message | st.builds(list.__add__, call, message)
    return st.builds(lambda output: encode({"id": "r", "output": output}), outputs)


odd = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
odd = odd | st.just([]) | st.just({}) | st.just("DEEP") | st.lists(odd, max_size=2)
items = st.builds(message_item, texts()) | st.builds(function_call_item, names, texts() | odd) | odd
items = items | st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "function_call", "reasoning", "function_call_output"])},
    optional=dict.fromkeys(("role", "content", "summary", "name", "arguments", "call_id"), odd),
)
items = items | st.builds(lambda part: {**message_item(""), "content": [part]}, odd)
malformed = st.sampled_from(list(build_malformed_outputs().values()))
outputs = st.lists(items, min_size=1, max_size=3) | malformed | odd
forms = st.builds(
    lambda output, usage, depth: encode({"id": "r", "output": output, "usage": usage}, depth),
    *(outputs, odd, counts),
)


def encode(response: JsonObject, depth: int = 1) -> bytes:
    """JSON in a wide sense: with NaN, lone surrogates, and many levels."""
    raw = json.dumps(response, ensure_ascii=depth % 2 == 0)
    return raw.replace('"DEEP"', "[" * depth + "]" * depth).encode("utf-8", "surrogatepass")


def rows_of(name: str) -> list[JsonObject]:
    shared = {"responses_create_params": {"input": "?"}}
    examples = read_rows(SERVERS / name / "data/example.jsonl")
    return [*examples, *({**shared, **row} for row in MORE_ROWS.get(name, []))]


class Server(NamedTuple):
    name: str
    verify: Verify


@contextmanager
def verifier(name: str, route: str = "/verify") -> Iterator[Verify]:
    """A server that lives through all calls."""
    server = registry.load("resources_servers", name)
    limits = {**LIMITS, UNSAFE_CODE: True, "default_score": 3.0}
    chosen = {key: limits[key] for key in limits if key in server.Config.model_fields}
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        servers = {**make_judges(server), name: making(server, **chosen)}
        peers = runner.run(stack.enter_async_context(mount(servers, "round_trip")))
        try:
            yield lambda row, response: runner.run(judge(peers, name, route, row, response))
        finally:
            runner.run(stack.aclose())


async def judge(
    peers: Peers, name: str, route: str, row: JsonObject, response: bytes
) -> JsonObject:
    """The verdict on a response; of a group, that on two such members beside a plain one."""
    with entered(Session()):
        if route == "/verify":
            await peers.call(name, "/seed_session", row, dict)
            raw = orjson.dumps(row)[:-1] + b', "response": ' + response + b"}"
            return orjson.loads(await peers.transport(name).send(route, raw))
        hostile, plain = (
            b'{"response": ' + each + b"}"
            for each in (response, encode({"id": "r", "output": [message_item("Yes.")]}))
        )
        members = b"[" + b", ".join([hostile, b"null", plain, hostile]) + b"]"
        raw = b'{"task": ' + orjson.dumps(row) + b', "members": ' + members + b"}"
        found = orjson.loads(await peers.transport(name).send(route, raw))["members"]
        assert found[1] is None and isinstance(found[2]["reward"], float)
        assert isinstance(found[3]["reward"], float)
        return found[0]


@pytest.fixture(scope="module", params=ROUTES, ids="-".join)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each route in turn; all its tests use one server."""
    name, route = request.param
    with verifier(name, route) as verify:
        yield Server(name, verify)


def hold_for_all(server: Server, responses: st.SearchStrategy[bytes]) -> None:
    @settings(max_examples=12, derandomize=True, database=None, suppress_health_check=HEALTHY)
    @given(st.sampled_from(rows_of(server.name)), responses)
    def hold(row: JsonObject, response: bytes) -> None:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        try:
            assert isinstance(server.verify(row, response)["reward"], float)
        finally:
            faulthandler.cancel_dump_traceback_later()

    hold()


def test_every_text_gets_a_verdict(server: Server) -> None:
    hold_for_all(server, as_response(codes if server.name == "code_gen" else known | texts()))


def test_every_repetition_gets_a_verdict(server: Server) -> None:
    """Each fragment in some marks, some number of times; those who have minutes try all."""
    tried = zip(cycle(NUMBERS), zip(cycle(MARKS), FRAGMENTS, strict=False), strict=False)
    judge_repetitions(server, tried)


@pytest.mark.slow
def test_every_repetition_in_all_marks_gets_a_verdict(server: Server) -> None:
    judge_repetitions(server, product(NUMBERS, product(MARKS, FRAGMENTS)))


def judge_repetitions(
    server: Server, repeated: Iterable[tuple[int, tuple[tuple[str, str], str]]]
) -> None:
    rows = cycle(rows_of(server.name))
    for number, (mark, fragment) in repeated:
        text = f"{mark[0]}{fragment * number}{mark[1]}"
        verdict = server.verify(next(rows), encode({"id": "r", "output": [message_item(text)]}))
        assert isinstance(verdict["reward"], float)


DEPTHS = [*range(900, 1_000), 10_000, MEGABYTE]


def test_code_that_returns_many_levels_gets_a_verdict() -> None:
    """Lists and objects in turn; those who have minutes try both at each depth."""
    judge_levels(zip(cycle(CODE[:2]), DEPTHS, strict=False))


@pytest.mark.slow
def test_code_that_returns_any_number_of_levels_gets_a_verdict() -> None:
    judge_levels(product(CODE[:2], DEPTHS))


def judge_levels(returned: Iterable[tuple[str, int]]) -> None:
    [row, *_] = MORE_ROWS["code_gen"]
    row = {**row, "responses_create_params": {"input": "?"}}
    with verifier("code_gen") as verify:
        for code, depth in returned:
            text = f"```python\n{code.format(n=depth)}\n```"
            verdict = verify(row, encode({"id": "r", "output": [message_item(text)]}))
            assert verdict["reward"] == 0.0 and verdict["metadata"]["error_message"]


def test_every_form_of_a_response_gets_a_verdict(server: Server) -> None:
    hold_for_all(server, forms)
