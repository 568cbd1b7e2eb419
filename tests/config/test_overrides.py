import re
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st

from rollout_kit.config.overrides import _plain, config_paths, parse
from rollout_kit.errors import ConfigError

TEXTS = ("output_jsonl_fpath", "agent_name", "a.b")


def parsed(*argv: str):
    return parse(argv, lambda key, raw: key in TEXTS)


def value(argument: str):
    (override,) = parsed(argument)
    return override.value


@pytest.mark.parametrize("sign", ["+", "++", ""])
def test_all_spellings_set(sign):
    (override,) = parsed(f"{sign}limit=5")
    assert (override.path, override.value, override.delete) == (("limit",), 5, False)


def test_a_tilde_removes():
    (override,) = parsed("~a.b")
    assert (override.path, override.delete) == (("a", "b"), True)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("null", None),
        ("20", 20),
        ("0.3", 0.3),
        ("1e-5", 1e-5),
        ("true", True),
        ("8-16-64", "8-16-64"),
        ("gpt-4o-mini", "gpt-4o-mini"),
        ("[1,2]", [1, 2]),
        ("{a: 1, _default: 2}", {"a": 1, "_default": 2}),
        ("'a,b'", "a,b"),
        ("${x.y}", "${x.y}"),
        ("", ""),
    ],
)
def test_values_are_hydras(raw, expected):
    found = value(f"+key={raw}")
    assert found == expected
    assert type(found) is type(expected)


@given(
    st.from_regex(r"\[?([-+]?(true|NULL|inf|nan|[0-9]{1,2}|[a-z_.:/,e-]){1,6})\]?", fullmatch=True)
    | st.text("tTrueFalsnifNUL01.eE+-_:/,[]x", max_size=6)
)
@example("[]")
@example("[[a],b]")
@example("[a,]")
@example("-Inf")
@example("1_000")
def test_a_plain_value_is_what_hydra_makes_of_it(raw):
    try:
        ours = repr(_plain(raw))
    except ValueError:
        return
    parsed = OverridesParser.create().parse_override(f"key={raw}")
    assert ours == repr(parsed.value())
    assert not parsed.is_sweep_override()


def test_a_plain_value_needs_no_import_of_hydra():
    for raw in ("true", "20", "-0.3", "1e-5", "policy/model.v1:2", "[a.yaml,b,3]", "null", "[]"):
        _plain(raw)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("a=b (1),2#.jsonl", "a=b (1),2#.jsonl"),
        ("~/a=b (1),2#.jsonl", str(Path.home() / "a=b (1),2#.jsonl")),
        ("~", str(Path.home())),
        ("~other/x", "~other/x"),
        ("données/été.jsonl", "données/été.jsonl"),
        ("007", "007"),
        ("true", "true"),
        ("[a]", "[a]"),
        ("'null'", "null"),
        ('"a b"', "a b"),
        ("'", "'"),
        ("null", None),
    ],
)
def test_the_raw_text_is_the_value_where_the_key_takes_text(raw, expected):
    assert value(f"+output_jsonl_fpath={raw}") == expected


@given(st.text(min_size=1).filter(lambda text: text != "null"))
@example("a=b")
def test_any_text_survives_for_a_text_key(text):
    found = value(f"+agent_name='{text}'")
    assert found == text


@given(st.lists(st.text(st.characters(exclude_characters="\"'"), min_size=1), max_size=4))
def test_any_list_of_quoted_paths_survives(paths):
    argument = "+config_paths=[" + ",".join(f'"{path}"' for path in paths) + "]"
    expected = [path if path != "null" else "null" for path in paths]
    assert config_paths([argument]) == list(dict.fromkeys(expected))


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("+config_paths=[a.yaml,b.yaml]", ["a.yaml", "b.yaml"]),
        ("+config_paths=[a.yaml, b.yaml]", ["a.yaml", "b.yaml"]),
        ("+config_paths=a.yaml", ["a.yaml"]),
        ("++config_paths=a.yaml,b.yaml", ["a.yaml", "b.yaml"]),
        ("config_paths=['a,b (1).yaml',c#=.yaml]", ["a,b (1).yaml", "c#=.yaml"]),
        ("+config_paths=[~/é.yaml]", [str(Path.home() / "é.yaml")]),
        ("+config_paths=[]", []),
        ("+config_paths=null", []),
    ],
)
def test_config_paths_may_be_written_in_many_ways(argument, expected):
    assert config_paths([argument]) == expected


def test_several_mentions_of_config_paths_add_up():
    assert config_paths(["+config_paths=a.yaml", "+config_paths=[b.yaml,a.yaml]"]) == [
        "a.yaml",
        "b.yaml",
    ]


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("+config_paths=[a.yaml", "a ']' is missing"),
        ("+config_paths=[a.yaml,", "a ']' is missing"),
        ("+config_paths=b.yaml]", "this ']' closes nothing"),
        ("+key=[1,2", "a ']' is missing"),
        ("+key={a:[1,2}", "this '}' closes nothing"),
        ("+key={a:1", "a '}' is missing"),
        ("+key=3]", "this ']' closes nothing"),
        ("""+key=['x]',"y]\"""", "a ']' is missing"),
    ],
)
def test_a_bracket_that_is_missing_is_named(argument, reason):
    with pytest.raises(ConfigError, match=f"{re.escape(argument)}: {reason}.*quote the whole"):
        config_paths([argument])
        parsed(argument)


def test_brackets_in_text_are_text():
    assert value("+output_jsonl_fpath=[x") == "[x"
    assert value("+key='[x'") == "[x"
    assert value("+key=['[',a]") == ["[", "a"]
    assert config_paths(["+config_paths=[a[1].yaml,'b].yaml']"]) == ["a[1].yaml", "b].yaml"]


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["+key=a,b"], """'+key="a,b"'"""),
        (["+key=a,b"], "'+key=[a,b]'"),
        (["+key=x=y"], """'+key="x=y"'"""),
        (["+key=été"], """'+key="été"'"""),
        (["+key=range(1,3)"], """'+key="range(1,3)"'"""),
        (["--limit", "5"], "+limit=5"),
        (["--limit=5"], "+limit=5"),
        (["--num-repeats", "4", "+x=1"], "+num_repeats=4"),
        (["--input", "a.jsonl"], "+input_jsonl_fpath=a.jsonl"),
        (["--fast"], "+fast=<value>"),
        (["limit"], "+limit=<value>"),
        (["a.yaml"], "'+config_paths=[a.yaml]'"),
        (["+limit =5"], "without spaces"),
        (["~limit=5"], "~limit"),
        (["+a..b=5"], "empty part"),
    ],
)
def test_what_is_not_an_override_is_refused_with_the_right_spelling(argv, hint):
    with pytest.raises(ConfigError) as caught:
        parsed(*argv)
    assert argv[0] in str(caught.value)
    assert hint in str(caught.value)
