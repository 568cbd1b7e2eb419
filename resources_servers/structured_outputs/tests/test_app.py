import asyncio
import json
from pathlib import Path

import orjson
import pytest
from support import HANG_S, limit_only

from rollout_kit import (
    ConfigError,
    TaskError,
    function_call_item,
    make_response,
    message_item,
    reasoning_item,
)
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

pytest.importorskip("jsonschema")
pytest.importorskip("xmltodict")

DATA = Path(__file__).parents[1] / "data"
StructuredOutputs = load("resources_servers", "structured_outputs")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "height": {"type": "number"},
        "lives": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}
ROOT = {"type": "object", "properties": {"person": PERSON}}
ROWS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": ["null", "integer"]},
            "lives": {"type": "boolean"},
        },
    },
}
ADA = '{"name": "Ada", "age": 36, "height": 1.6, "lives": false, "tags": ["a", "b"]}'
ANY: dict = {}


def rows(file):
    return [orjson.loads(line) for line in (DATA / file).read_bytes().splitlines()]


def row(format, schema=PERSON, **fields):
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "Who?"}]},
        "schema_str": schema if isinstance(schema, str) else json.dumps(schema),
        "schema_type": format,
        **fields,
    }


def verdicts(pairs, **settings):
    """Of each (row, text or items), by one server."""

    async def run():
        config = StructuredOutputs.Config(
            **{"num_verify_workers": 1, "verify_timeout_s": HANG_S, **settings}
        )
        server = StructuredOutputs(config, None, "structured")
        await server.start()
        try:
            found = []
            for task, said in pairs:
                with entered(Session()):
                    await server.handle("/seed_session", orjson.dumps(task))
                    items = [message_item(said)] if isinstance(said, str) else said
                    response = make_response("m", items, None)
                    response |= task.get("broken_by", {})
                    body = orjson.dumps({**task, "response": response})
                    found.append(await server.handle("/verify", body))
            return found
        finally:
            await server.stop()

    return asyncio.run(run())


TABLE = [
    ("json", PERSON, ADA, None),
    ("json", PERSON, f" \n{ADA}\n", None),
    ("json", PERSON, ADA.replace("36", "36.0"), None),
    ("json", PERSON, ADA.replace("36", "36.5"), "validation_error"),
    ("json", PERSON, ADA.replace("36", '"36"'), "validation_error"),
    ("json", PERSON, ADA.replace("false", "0"), "validation_error"),
    ("json", PERSON, '{"name": "Ada"}', "validation_error"),
    ("json", PERSON, ADA.replace("{", '{"more": 1, '), "validation_error"),
    (
        "json",
        {"additionalProperties": {"type": "null"}},
        r'{"\ud800": "\udfff"}',
        "validation_error",
    ),
    ("json", PERSON, f"```json\n{ADA}\n```", "parse_error"),
    ("json", PERSON, f"Here you are: {ADA}", "parse_error"),
    ("json", PERSON, "", "empty_response"),
    ("json", PERSON, " \n", "empty_response"),
    ("json", {"anyOf": [PERSON]}, "{}", None),  # strict in mappings alone, as in NeMo Gym
    ("json", {"type": "string", "pattern": "^a+$"}, '"aaa"', None),
    ("json", {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, "7", None),
    ("json", {"$ref": "http://localhost:9/schema"}, "7", "validation_error"),
    ("yaml", PERSON, ADA, None),
    ("yaml", PERSON, "name: Ada\nage: 36\nheight: 1.6\nlives: no\ntags: [a, b]", None),
    ("yaml", PERSON, "name: 7\nage: 36\nheight: 1.6\nlives: no\ntags: []", "validation_error"),
    ("yaml", {"type": "string"}, "2001-01-01", "validation_error"),
    ("yaml", ANY, "a: &x [1]\nb: *x", None),
    ("yaml", ANY, "a: b: c", "parse_error"),
    ("yaml", ANY, "!!python/object/apply:os.system ['true']", "parse_error"),
    (
        "xml",
        ROOT,
        "<person><name/><age>36</age><height>1.6</height><lives>1</lives>"
        "<tags><tag>a</tag><tag>b</tag></tags></person>",
        None,
    ),
    (
        "xml",
        ROOT,
        "<person><name>Ada</name><age>36</age><height>2</height><lives>False</lives>"
        "<tags>one</tags></person>",
        None,
    ),
    (
        "xml",
        ROOT,
        "<person><name>Ada</name><age/><height>2</height><lives>no</lives><tags/></person>",
        "validation_error",
    ),
    ("xml", ROOT, "<person><name>Ada</person>", "parse_error"),
    ("xml", ANY, '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "parse_error"),
    ("xml", ANY, '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>', "parse_error"),
    ("toml", PERSON, 'name="Ada"\nage=36\nheight=1.6\nlives=false\ntags=["a"]', None),
    ("toml", PERSON, 'name="Ada"\nage=36', "validation_error"),
    ("toml", PERSON, "name=Ada", "parse_error"),
    ("csv", ROWS, "name,age,lives\nAda,36,false\nBob,,TRUE\n", None),
    ("csv", ROWS, "name,age,lives\nAda,old,false\n", "validation_error"),
    ("csv", ROWS, "name,age,lives\nAda,36\n", "validation_error"),
    ("csv", ROWS, "name,age,lives\nAda,36,false,more\n", "validation_error"),
    ("csv", ROWS, "Ada", "validation_error"),  # any single line is a header without rows
    ("csv", ROWS, "name,age,lives", None),
]


def test_texts_right_wrong_malformed_and_adversarial():
    found = verdicts([(row(format, schema), said) for format, schema, said, _ in TABLE])
    got = [(verdict.reward, verdict.error_type) for verdict in found]
    expected = [(float(error is None), error) for *_, error in TABLE]
    assert [
        (entry, is_so, verdict.error_message)
        for entry, is_so, should, verdict in zip(TABLE, got, expected, found, strict=True)
        if is_so != should
    ] == []


def has(schema, **more):
    """An object with the property `a`."""
    return {"type": "object", "properties": {"a": schema}, **more}


def column(schema):
    return {"type": "array", "items": {**has(schema), "additionalProperties": False}}


NUMBER, WHOLE, NULLABLE = {"type": "number"}, {"type": "integer"}, {"type": ["integer", "null"]}
TEXT, TRUTH = {"type": "string"}, {"type": "boolean"}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
PAIR = {"type": "array", "items": [WHOLE, TEXT], "additionalItems": False}
REF = {"$ref": "#/$defs/d"}
TREE = has(WHOLE) | {"properties": {"a": WHOLE, "next": {"anyOf": [REF, {"type": "null"}]}}}
MATRIX = {"type": "array", "items": {"type": "array", "items": WHOLE}}
SHAPES = [has(WHOLE, required=["a"]), {"properties": {"b": TEXT}, "required": ["b"]}]

RULES = [
    # numbers of each format
    ("json", has(NUMBER), '{"a": %s}', "1 -1.5e3 1E400", "NaN Infinity -Infinity 1_000 0x1 01 .5"),
    ("yaml", has(NUMBER), "a: %s", "1 -1.5e+3 0x1f 1_000", ".nan .inf -.inf NaN Infinity 1e"),
    ("toml", has(NUMBER), "a = %s", "1 -1.5e3 0x1f 1_000", "nan inf -inf NaN 1__0"),
    ("xml", has(NUMBER), "<a>%s</a>", "1 -1.5e3 .5 +2 1.", "NaN nan INF -inf infinity 1_0 0x1 ١"),
    ("xml", has(WHOLE), "<a>%s</a>", "1 -20 +3", "1_0 1.5 0x1 ١ one nan"),
    ("csv", column(NUMBER), "a\n%s\n", "1 -1.5e3", "NaN inf 1_0 0x1 ١"),
    ("csv", column(WHOLE), "a\n%s\n", "1 -20", "1_0 1.5 0x1 ١"),
    ("csv", column(NULLABLE), "a\n%s\n", '1 ""', "1_0 null x"),
    ("csv", column({"anyOf": [WHOLE, {"type": "null"}]}), "a\n%s\n", '1 ""', "1_0 x"),
    ("csv", column({"enum": [1, "x"]}), "a\n%s\n", "1 x", "2 y"),
    ("csv", column({"type": "array"}), "a\n%s\n", "", '1 ""'),
    # properties named like keywords
    *[
        ("json", {"type": "object", "properties": {name: TEXT}}, '{"' + name + '": %s}', '"x"', "1")
        for name in ("properties", "required", "items", "type", "$ref", "pattern", "enum")
    ],
    ("json", has(has(TEXT)), '{"a": %s}', '{"a":"x"}', "{}"),
    ("json", has({"const": {"properties": {"b": 1}}}), '{"a": %s}', '{"properties":{"b":1}}', "{}"),
    ("json", has(TEXT, default={"properties": 7}), '{"a": %s}', '"x"', "7"),
    # drafts
    ("json", has(PAIR, **DRAFT_7), '{"a": %s}', '[1,"x"] [1]', '["x",1] [1,"x",2]'),
    ("json", has(PAIR), '{"a": %s}', '[1,"x"]', '["x",1] [1,"x",2]'),
    ("json", has({"prefixItems": [WHOLE, TEXT]}), '{"a": %s}', '[1,"x"]', '["x",1]'),
    ("json", has({"definitions": {}, **WHOLE}, **DRAFT_7), '{"a": %s}', "1 1.0", "1.5"),
    ("xml", has({"type": "object", "properties": {"b": PAIR}}, **DRAFT_7), "<a>%s</a>",
     "<b>1</b><b>x</b>", "<b>x</b><b>1</b>"),
    ("json", has({"exclusiveMinimum": True, "minimum": 1},
                 **{"$schema": "http://json-schema.org/draft-04/schema#"}), '{"a": %s}', "2", "1"),
    ("json", has({"exclusiveMinimum": 1, "type": "object", "properties": {}},
                 **{"$schema": "http://json-schema.org/draft-04/schema#"}), '{"a": %s}', "{}", "2"),
    ("json", has(has({}), **{"$schema": "http://json-schema.org/draft-03/schema#"}), '{"a": %s}',
     '{"a":1}', "{}"),
    ("xml", has(WHOLE, **{"$schema": "https://spec.openapis.org/oas/3.1/dialect/base"}),
     "<a>%s</a>", "1", "x"),
    # patterns
    ("json", has({"pattern": "^\\d+$"}), '{"a": %s}', '"12"', '"12\\n" "1x" "١"'),
    ("json", has({"pattern": "^[\\d$]+$"}), '{"a": %s}', '"12$"', '"12\\n" "x"'),
    ("json", has({"pattern": "^\\w\\$$"}), '{"a": %s}', '"a$"', '"a" "é$" "a$\\n"'),
    ("json", has({"pattern": "^a.c\\s$"}), '{"a": %s}', '"abc\\t" "abc\\n"', '"a\\rc\\t" "abc"'),
    ("json", has({"pattern": "^(?<y>[^]])\\k<y>$"}), '{"a": %s}', "", '"ab]"'),
    ("json", has({"pattern": "^(?<y>.)\\k<y>$"}), '{"a": %s}', '"aa"', '"ab" "aa\\n"'),
    ("json", {"patternProperties": {"^x$": WHOLE}, "additionalProperties": False}, '{%s: 1}',
     '"x"', '"x\\n" "y"'),
    # multiples
    ("json", has({"multipleOf": 0.01}), '{"a": %s}', "19.99 0.07 1 -4.35 1e22", "19.995 0.001"),
    ("json", has({"multipleOf": 0.1}), '{"a": %s}', "0.3 1.1 0", "0.35 0.30000000000000004"),
    ("json", has({"multipleOf": 3}), '{"a": %s}', '9 9.0 "x" true', "10 9.5"),
    ("json", has({"type": "number", "minimum": 0.1}), '{"a": %s}', "0.1 1", "0.09 true"),
    # XML
    ("xml", has(NULLABLE), "%s", "<a>1</a> <a/> <a></a>", "<a>x</a> <a>null</a> <a>1.5</a>"),
    ("xml", has({"anyOf": [WHOLE, {"type": "null"}]}), "%s", "<a>1</a> <a/>", "<a>x</a>"),
    ("xml", has({"oneOf": [WHOLE, TRUTH]}), "<a>%s</a>", "7 true", "x"),
    ("xml", has({"type": ["integer", "string"], "enum": ["1", 2]}), "<a>%s</a>", "1 2", "3"),
    ("xml", has({"enum": [1, 2.5, True, "x"]}), "<a>%s</a>", "1 2.5 true x", "2 false y"),
    ("xml", has({"const": 3}), "<a>%s</a>", "3", "4 three"),
    ("xml", has({"type": "integer", "enum": [1, 2]}), "<a>%s</a>", "1", "3"),
    ("xml", has({"allOf": [WHOLE, {"minimum": 2}]}), "<a>%s</a>", "2", "1 x"),
    ("xml", has(REF, **{"$defs": {"d": has(WHOLE)}}), "<a>%s</a>", "<a>1</a>", "<a>x</a> <b>1</b>"),
    ("xml", {**REF, "$defs": {"d": has(WHOLE)}}, "%s", "<a>1</a>", "<a>x</a>"),
    ("xml", has(REF, **{"$defs": {"d": REF}}), "<a>%s</a>", "", "1"),
    ("xml", has(REF, **{"$defs": {"d": TREE}}), "<a>%s</a>",
     "<a>1</a><next><a>2</a><next/></next> <a>1</a><next/>",
     "<a>1</a> <a>1</a><next><a>x</a></next>"),
    ("xml", has({"anyOf": SHAPES}), "<a>%s</a>", "<a>1</a> <b>1</b>", "<a>x</a>"),
    ("xml", has({"type": "object"}), "%s", "<a/> <a><b>1</b></a>", "<a>1</a>"),
    ("xml", has({"type": "object", "patternProperties": {"^n": WHOLE}}), "<a>%s</a>",
     "<n1>1</n1> <n1>1</n1><n2>2</n2>", "<n1>x</n1>"),
    ("xml", has({"type": "object", "additionalProperties": WHOLE}), "<a>%s</a>",
     "<n>1</n>", "<n>x</n>"),
    ("xml", has(TRUTH), "<a>%s</a>", "true false 1 0", "yes 2 t"),
    # lists of XML
    ("xml", has(has({"type": "array", "items": WHOLE})), "<a>%s</a>",
     "<a>1</a> <a>1</a><a>2</a> <a><i>1</i></a> <a><i>1</i><i>2</i></a> <a/>",
     "<a>x</a> <a><i>1</i><i>x</i></a> <a><i>1</i><j>2</j></a>"),
    ("xml", has(has({"type": "array", "items": has(WHOLE)})), "<a>%s</a>",
     "<a><a>1</a></a> <a><a>1</a></a><a><a>2</a></a> <a><i><a>1</a></i></a>",
     "<a><a>x</a></a> <a><b>1</b></a>"),
    ("xml", has(has(MATRIX)), "<a>%s</a>",
     "<a><r><c>1</c><c>2</c></r></a> <a><r><c>1</c></r><r><c>2</c></r></a> <a>1</a>",
     "<a><r><c>x</c></r></a>"),
    ("xml", has(has({"type": ["array", "null"], "items": WHOLE})), "<a>%s</a>",
     "<a>1</a> <a/>", "<a>x</a>"),
    # keys that are there twice
    ("yaml", has(WHOLE), "a: 1\n%s: 2", "", "a"),
    ("yaml", has({}), "a: {<<: {b: 1}, %s: 2}", "b c", ""),
    ("toml", has(WHOLE), "a = 1\n%s = 2", "", "a"),
    ("csv", column(WHOLE), "a%s\n1\n", "", ",a ,b"),
]  # fmt: skip


def test_each_rule_takes_what_it_should():
    pairs, expected = [], []
    for format, schema, frame, *lists in RULES:
        for texts, reward in zip(lists, (1.0, 0.0), strict=True):
            for text in texts.split():
                pairs.append((row(format, schema), frame.replace("%s", text)))
                expected.append(reward)
    found = verdicts(pairs)
    for (task, said), verdict, reward in zip(pairs, found, expected, strict=True):
        assert verdict.reward == reward, (task["schema_str"], said, verdict.error_message)


@pytest.mark.parametrize("text", ["NaN", '{"payload": -Infinity}'])
def test_arguments_of_a_call_are_json(text):
    [found] = verdicts([(row("json", ANY, response_mode="tool_call"), [call(text)])])
    assert found.error_type == "tool_arguments_parse_error"


CASES = [
    json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text().splitlines()
]


def test_the_cases():
    asked = {"responses_create_params": {"input": "?"}}
    found = verdicts([({**asked, **case["row"]}, case["answer"]) for case in CASES])
    for case, verdict in zip(CASES, found, strict=True):
        assert verdict.reward == case["reward"], (case["about"], verdict.error_message)


def call(arguments, name="save"):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return function_call_item(name, text)


PAYLOAD = {"tool_name": "save", "tool_payload_key": "payload"}
CALLS = [
    ({"tool_name": "save"}, [call(ADA)], None),
    ({"tool_name": "save"}, [reasoning_item("hm"), call(ADA)], None),
    ({"tool_name": "save"}, [call("{}", "look"), call(ADA)], "multiple_tool_calls"),
    ({}, [call(ADA, "whatever")], None),
    ({}, [{**call(""), "arguments": json.loads(ADA)}], None),
    ({}, [{**call(""), "arguments": None}], "tool_arguments_parse_error"),
    ({}, [call(ADA), call(ADA)], "multiple_tool_calls"),
    ({"tool_name": "save"}, [call(ADA, "store")], "wrong_tool_name"),
    ({"tool_name": "save"}, [message_item(ADA)], "missing_tool_call"),
    ({"tool_name": "save"}, [call(ADA[:-1])], "tool_arguments_parse_error"),
    ({"tool_name": "save"}, [call("{" * 100_000)], "tool_arguments_parse_error"),
    (PAYLOAD, [call({"payload": json.loads(ADA)})], None),
    (PAYLOAD, [call(ADA)], "missing_tool_payload_key"),
    (PAYLOAD, [call("[1]")], "missing_tool_payload_key"),
    ({"broken_by": {"error": {"code": "server_error"}}}, [call(ADA)], "api_error"),
]


def test_arguments_of_a_tool_call_are_the_answer_where_the_row_says_so():
    pairs = [
        (row("json", response_mode="tool_call", **fields), items) for fields, items, _ in CALLS
    ]
    found = [verdict.error_type for verdict in verdicts(pairs)]
    assert found == [error for *_, error in CALLS]


def test_gold_answers_score_full_reward_and_wrong_ones_nothing():
    shipped = [*rows("example.jsonl"), *rows("tool_call.jsonl")]
    found = verdicts(
        [
            (task, task.get(f"{which}_items") or task[f"{which}_output"])
            for task in shipped
            for which in ("gold", "wrong")
        ]
    )
    assert [verdict.reward for verdict in found] == [1.0, 0.0] * len(shipped)


def test_without_coercion_xml_has_text_alone():
    task = row("xml", {"type": "object", "properties": {"age": {"type": "integer"}}})
    [found] = verdicts([(task, "<age>36</age>")], xml_coerce_types=False)
    assert (found.reward, found.error_type) == (0.0, "validation_error")


def test_the_error_says_where():
    [found] = verdicts([(row("json"), ADA.replace("36", '"old"'))])
    assert found.error_message == "$.age: 'old' is not of type 'integer'"


LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 30)
)
HOSTILE = [
    *[("yaml", text) for text in ("[" * 100_000, "{a: " * 25_000, "- " * 50_000, LAUGHS)],
    ("yaml", "&a [*a]"),
    ("json", "[" * 100_000),
    ("json", "1" * 100_000),
    ("toml", "a = " + "[" * 100_000),
    ("csv", "a\n" + "b" * 140_000),
    (
        "xml",
        "<!DOCTYPE a ["
        + '<!ENTITY b0 "x">'
        + "".join(f'<!ENTITY b{n} "{f"&b{n - 1};" * 10}">' for n in range(1, 20))
        + "]><a>&b19;</a>",
    ),
]
DEEP = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object"}}}}


def test_a_hundred_kilobytes_that_mean_harm_are_refused_in_time():
    found = verdicts([(row(format, ANY), said) for format, said in HOSTILE])
    assert [verdict.error_type for verdict in found] == ["parse_error"] * len(HOSTILE)
    odd = ["<a>" * 14_000 + "</a>" * 14_000, "<a>" + "<b>1</b>" * 12_000 + "</a>"]
    found = verdicts([(row("xml", DEEP), said) for said in odd])
    assert [verdict.error_type for verdict in found] == [None, "validation_error"]


WIDE = ", ".join(f"k{n}: 1" for n in range(4_000))
PARTS = ["a"] * 50_000
ATTRIBUTES = " ".join(f'c{n} CDATA "x"' for n in range(6_000))
SLOW = [
    ("toml", ".".join(PARTS) + " = 1"),
    ("toml", "[" + " . ".join(PARTS) + "]"),
    ("toml", "c = {" + ".".join(['"a"', "'b'"] * 25_000) + " = 1}"),
    ("toml", f"[{'.'.join(PARTS[:4_000])}]\n" + "\n".join(f"b{n} = 1" for n in range(10_000))),
    ("yaml", "a: " + "1:" * 200_000 + "1"),
    ("yaml", "a: -1" + ":59" * 200_000),
    ("yaml", "a: !!int '" + "1:" * 200_000 + "1'"),
    ("yaml", f"a: &a {{{WIDE}}}\n" + "".join(f"b{n}: {{<<: *a}}\n" for n in range(4_000))),
    ("yaml", f"a: &a {{{WIDE}}}\nb: {{<<: [{', '.join(['*a'] * 20_000)}]}}"),
    ("yaml", "".join(f"%TAG !a{n}! b\n" for n in range(60_000)) + "--- a"),
    ("xml", f"<!DOCTYPE a [<!ATTLIST b {ATTRIBUTES}>]><a>" + "<b/>" * 20_000 + "</a>"),
]
"""Texts for which their parsers need more CPU time than the test allows, or more memory."""


@pytest.mark.parametrize("number", range(len(SLOW)))
def test_a_text_with_which_its_parser_is_slow_is_refused_before(number):
    format, text = SLOW[number]
    [found] = verdicts([(row(format, ANY), text)], verify_timeout_s=3)
    assert found.error_type == "parse_error", found.error_message
    assert "Memory" not in found.error_message


ALIKE = [
    ("toml", 'a = """' + ".a" * 1_000 + '"""\nb = "' + "a." * 1_000 + '" # ' + "a." * 1_000),
    ("toml", "a = '''" + "a." * 1_000 + "\"'''\nb = '" + "a." * 1_000 + "'\n# '" + "a." * 99),
    ("toml", 'a = "\\"' + "a." * 1_000 + '"\nb = """\\"""' + "a." * 99 + '"""""'),
    ("toml", ".".join(PARTS[:30]) + " = [1.5, 1979-05-27T07:32:00.5]\nd = " + "9" * 4_000),
    ("toml", "a = [" + "1.5, " * 10_000 + "]\nb = 0x" + "f" * 50_000),
    ("yaml", "a: 1:30:00\nb: 190:20:30.15\nc: 0x" + "f" * 50_000 + "\nd: 1e999"),
    ("yaml", "a: 59" + ":59" * 2_000),
    ("yaml", "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [*a, {z: 1}]}"),
    ("yaml", "%TAG !e! tag:yaml.org,2002:\n---\na: !e!str 1"),
    ("xml", "<a><![CDATA[<!ATTLIST b c CDATA 'x'>]]></a>"),
    ("xml", "<!DOCTYPE a [<!ELEMENT a (#PCDATA)>]><a>b</a>"),
]


def test_texts_that_look_like_slow_ones_are_read():
    found = verdicts([(row(format, ANY), text) for format, text in ALIKE])
    assert [verdict.error_message for verdict in found] == [None] * len(ALIKE)


def test_a_merged_mapping_has_its_own_values_and_those_of_the_other():
    merged = {"properties": {"x": {"const": 1}, "y": {"const": 3}}}
    schema = {"type": "object", "properties": {"a": {}, "b": merged}}
    [found] = verdicts([(row("yaml", schema), "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}")])
    assert found.error_message is None


UNIQUE = [
    ('[1, 2, [1], [2], {}, {"a": 1}, "1", null]', None),
    ('[1, true, 0, false, [1], [true], {"a": 0}, {"a": false}]', None),
    ("[1, 1.0]", "validation_error"),
    ("[[true], [true]]", "validation_error"),
    ('[{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}]', "validation_error"),
    ('["a", "b", "a"]', "validation_error"),
    ("[" + ",".join(f'{{"a": {n}}}' for n in range(20_000)) + "]", None),
]


def test_elements_are_compared_as_json_and_many_of_them_in_one_pass():
    pairs = [(row("json", {"uniqueItems": True}), text) for text, _ in UNIQUE]
    found = verdicts(pairs, verify_timeout_s=3)
    assert [verdict.error_type for verdict in found] == [error for _, error in UNIQUE]


def test_a_pattern_of_the_schema_that_never_ends_is_cut_off(monkeypatch):
    limit_only("a" * 50, monkeypatch)
    task = row("json", {"type": "string", "pattern": "^(a+)+$"})
    found = verdicts([(task, json.dumps("a" * 50 + "!")), (task, '"a"')], verify_timeout_s=0.5)
    assert [verdict.error_type for verdict in found] == ["timeout", None]


def test_a_package_that_is_missing_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(
        StructuredOutputs, "needs", {"no_such_package": "rollout-kit[structured-outputs]"}
    )
    with pytest.raises(
        ConfigError, match=r"no_such_package: run .*pip install .*structured-outputs"
    ):
        verdicts([])


REFUSED = [
    ({"schema_str": "{"}, "schema_str: JSONDecodeError"),
    ({"schema_str": "true"}, "it is not a JSON object"),
    ({"schema_str": "[1]"}, "schema_str: SchemaError"),
    ({"schema_str": '{"type": "text"}'}, "schema_str: SchemaError"),
    ({"schema_str": '{"properties": 7}'}, "schema_str: SchemaError"),
    ({"schema_str": '{"pattern": "("}'}, "schema_str: SchemaError"),
    ({"schema_type": "ini"}, "schema_type"),
    ({"response_mode": "voice"}, "response_mode"),
]


def test_a_row_whose_schema_is_none_is_refused_when_its_session_is_seeded():
    async def run():
        server = StructuredOutputs(StructuredOutputs.Config(), None, "structured")
        try:
            for fields, complaint in REFUSED:
                with entered(Session()), pytest.raises(TaskError, match=complaint) as caught:
                    await server.handle("/seed_session", orjson.dumps({**row("json"), **fields}))
                assert caught.value.terminal
        finally:
            await server.stop()

    asyncio.run(run())
