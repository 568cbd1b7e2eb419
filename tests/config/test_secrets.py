import asyncio
import json
import re
from base64 import b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_kit.api.testing import making, text_response
from rollout_kit.secrets import (
    MASK,
    echoes,
    is_secret_key,
    mask,
    mask_echo,
    private_values,
    secret_values,
)
from rollout_kit.serving.model import Model, ModelConfig
from rollout_kit.serving.transport.peers import Peers


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
        "api-key",
        "Ocp-Apim-Subscription-Key",
        "clientSecret",
        "db_pwd",
        "my_pw",
        "passphrase",
        "connection_string",
        "private_key",
    ],
)
def test_these_keys_are_secret(key):
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "max_output_tokens",
        "model",
        "num_tokens",
        "eos_token",
        "api_key_file",
        "tokenizer",
        "tokens",
        "key",
    ],
)
def test_these_keys_are_not(key):
    assert not is_secret_key(key)


def test_secrets_are_found_at_any_depth_and_in_lists():
    tree = {"a": [{"api_key": ["first-key", "second-key"]}], "password": {"x": "third-key"}}
    assert secret_values(tree) == {"first-key", "second-key", "third-key"}


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "first-key", "x-b": "second-key", "accept": "harmless"},
        ["X-A: first-key", "x-b:second-key", "accept: harmless"],
        [{"name": "X-A", "value": "first-key"}, {"name": "x-b", "value": "second-key"}],
    ],
)
@pytest.mark.parametrize("key", ["headers", "extraHeaders", "default-headers"])
def test_headers_are_secret_in_every_form(key, headers):
    assert secret_values({"a": {key: headers}}) == {"first-key", "second-key"}
    assert secret_values({key: "X-A: first-key"}) == {"first-key"}


def test_a_secret_is_masked_without_the_blanks_around_it_too():
    secrets = secret_values({"api_key": "sk-block-text\n"})
    assert mask("got sk-block-text.", secrets) == "got ****."


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


def test_headers_and_url_queries_are_secret_but_not_the_harmless_ones():
    tree = {
        "openai_default_headers": {"X-Auth-Token": "token-1234", "content-type": "text/plain"},
        "base_url": "https://only-user@host/v1?code=c%2Fde-123&api-version=2024-10-21",
    }
    assert secret_values(tree) == {"token-1234", "only-user", "c%2Fde-123", "c/de-123"}
    shown = mask(tree, secret_values(tree))
    assert shown["openai_default_headers"] == {"X-Auth-Token": MASK, "content-type": "text/plain"}
    assert shown["base_url"] == f"https://{MASK}@host/v1?code={MASK}&api-version=2024-10-21"


def test_the_texts_of_env_yaml_are_secret_unless_they_plainly_are_not():
    tree = {
        "my_pw": "hunter2!",
        "notes": ["first note", 17],
        "policy_model_name": "gpt-4o-mini",
        "judge_model": "Qwen/Qwen3-4B",
        "data": "/data/tasks.jsonl",
        "home": "~/rollouts",
        "endpoint": "https://api.example.com/v1",
        "with_user": "https://me:secret-1@example.com",
        "port": "8000",
        "flag": True,
    }
    assert private_values(tree) == {"hunter2!", "first note", "secret-1"}


@pytest.mark.parametrize(
    "text",
    [
        "https://host/?key=SECRET",
        "Basic BASE64",
        "an error: CUT…",
        "an error: CUT\\u2026",
        "…TAIL of it",
    ],
)
def test_a_secret_is_masked_in_any_spelling_and_where_it_was_cut_off(text):
    secret = "s3cr/t+with=signs"
    text = text.replace("SECRET", quote(secret, safe="")).replace("TAIL", secret[5:])
    text = text.replace("BASE64", b64encode(f"me:{secret}".encode()).decode())
    shown = mask(text.replace("CUT", secret[:10]), {secret})
    assert MASK in shown
    for part in (secret[:8], secret[-8:], quote(secret, safe="")[-8:]):
        assert part not in shown


def test_an_echo_is_masked_only_where_it_can_hardly_be_something_else():
    secrets = frozenset({"session", "session=0123456789abcdef"})
    said = {"text": "the session: session=1", "token": "kept", "n": [1, None]}
    assert not echoes(json.dumps(said), secrets)
    said["text"] += " session=0123456789ab"
    assert echoes(json.dumps(said), secrets)
    assert mask_echo(said, secrets) == {**said, "text": f"the session: session=1 {MASK}"}


@given(st.text(min_size=8), st.integers(8, 40))
def test_masking_what_was_cut_off_ends(secret, size):
    assert secret[:size] not in mask(f"<{secret[:size]}", {secret}) or MASK in secret[:size]


class Echoing(Model):
    class Config(ModelConfig):
        api_key: str

    config: Config

    async def responses(self, params):
        text = f"this key was sent along with the request: {self.config.api_key}"
        return {**text_response(text), "status": "completed"}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/responses", {"input": "hi", "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True}),
    ],
)
def test_a_stream_has_no_pieces_of_a_secret(path, asked):
    key = f"sk-{''.join(f'{number:03}' for number in range(60))}"
    model = making(Echoing, api_key=key)(Peers({}), "echoing")
    told = asyncio.run(model.answer(path, json.dumps(asked).encode()))
    text = "".join(re.findall(r'"(?:delta|content)":"([^"]*)"', bytes(told).decode()))
    assert "along with the request: ****" in text
    assert not {key[at : at + 5] for at in range(len(key) - 4)} & {
        text[at : at + 5] for at in range(len(text) - 4)
    }


@pytest.mark.parametrize("secret", ["****", "*****", "********", "a***"])
def test_a_secret_that_looks_like_the_mask_is_masked_too(secret):
    assert mask(f"<{secret}>", {secret}) == f"<{MASK}>"
