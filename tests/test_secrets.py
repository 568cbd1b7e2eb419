import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_kit.secrets import MASK, is_secret_key, mask, secret_values


@pytest.mark.parametrize(
    "key",
    [
        "OPENAI_API_KEY",
        "policy_api_key",
        "api_key",
        "client_secret",
        "password",
        "HF_TOKEN",
        "token",
    ],
)
def test_these_keys_are_secret(key):
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key", ["max_output_tokens", "model", "num_tokens", "eos_token", "api_key_file", "tokenizer"]
)
def test_these_keys_are_not(key):
    assert not is_secret_key(key)


def test_secrets_are_found_at_any_depth_and_in_lists():
    tree = {"a": [{"api_key": ["first-key", "second-key"]}], "password": {"x": "third-key"}}
    assert secret_values(tree) == {"first-key", "second-key", "third-key"}


def test_secrets_are_found_in_urls_in_numbers_and_line_by_line():
    lines = "-----BEGIN KEY-----\nfirst-line\nsecond-line\nxyz"
    tree = {
        "base_url": "https://me:hunter2pass@host/v1",
        "db_password": 918273645,
        "headers": {"Authorization": "Bearer abcdefgh"},
        "AWS_SECRET_ACCESS_KEY": "aws-secret",
        "private_secret": lines,
    }
    found = {"hunter2pass", "918273645", "Bearer abcdefgh", "abcdefgh", "aws-secret"}
    assert secret_values(tree) == found | {lines, "first-line", "second-line"}


def test_a_secret_is_masked_as_python_and_json_spell_it():
    secret = 'it\'s a "quoted" \\ one'
    assert mask(f"{secret!r} {json.dumps(secret)} {secret}", {secret}).count(MASK) == 3


@pytest.mark.parametrize("value", ["EMPTY", "dummy", "abc", "", None, 12345, "${OPENAI_API_KEY}"])
def test_placeholders_and_short_values_are_not_masked_in_texts(value):
    assert secret_values({"api_key": value}) == frozenset()


def test_a_secret_is_masked_wherever_it_turns_up():
    shown = mask({"url": "http://u:sk-1234@h", "list": ["sk-1234"], "n": 3}, {"sk-1234"})
    assert shown == {"url": f"http://u:{MASK}@h", "list": [MASK], "n": 3}


def test_a_secret_key_is_masked_whatever_it_holds_but_not_nothing():
    shown = mask({"api_key": 12345, "hf_token": None, "password": "", "secret": ["abc"]})
    assert shown == {"api_key": MASK, "hf_token": None, "password": "", "secret": [MASK]}


def test_a_secret_is_masked_in_json_text_too():
    assert mask('{"k": "se\\"cret"}', {'se"cret'}) == '{"k": "****"}'


@given(
    st.sets(st.text(st.characters(exclude_characters="*"), min_size=4), min_size=1),
    st.text(),
    st.text(),
)
def test_no_secret_is_left_in_a_text(secrets, before, after):
    for secret in secrets:
        assert secret not in mask(f"{before}{secret}{after}", secrets)
