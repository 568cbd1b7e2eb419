import asyncio
import base64
import json
import stat
import sys
import time
import types
from functools import partial

import hosted
import orjson
import pytest
from aiohttp import web
from hosted import CHAT, HI, RESPONSE, Endpoint, asks, gives, refuses

from rollout_kit.errors import ConfigError, ModelError
from rollout_kit.serving.registry import load

AzureOpenAIModel = load("responses_api_models", "azure_openai_model")
tokens = sys.modules[AzureOpenAIModel.__module__.replace(".app", ".tokens")]

UNKNOWN = refuses(
    404,
    "The API deployment for this resource does not exist. If you created the deployment within"
    " the last 5 minutes, please wait a moment and try again.",
    code="DeploymentNotFound",
)


# a token may come from a process or a thread
with_model = partial(hosted.with_model, run=asyncio.run)


def at(path="", **settings):
    def make(url):
        given = {"azure_endpoint": url + path, "azure_deployment": "gpt-4o-mini", **settings}
        return AzureOpenAIModel(AzureOpenAIModel.Config(**given), None, "policy_model")

    return make


def ask(endpoint, params=None, path="", **settings):
    proof = {} if settings.keys() & {*PROOFS} else {"api_key": "secret-key"}
    return with_model(endpoint, asks(params), at(path, **proof, **settings))


PROOFS = ("api_key", "azure_ad_token", "azure_token_command", "use_azure_identity")


def jwt(name, lasts_s):
    """As Entra ID writes it, its signature aside."""
    claims = orjson.dumps({"aud": name, "exp": time.time() + lasts_s})
    return f"x.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.y"


class Printer:
    """A command that prints another token each time, from a list."""

    def __init__(self, folder, printed, status=0):
        (folder / "printed").write_text(json.dumps(printed))
        self.log = folder / "log"
        self.command = str(folder / "token")
        (folder / "token").write_text(
            f"#!{sys.executable}\nimport json, sys, pathlib\n"
            f"log = pathlib.Path({str(self.log)!r})\n"
            "log.touch(); number = len(log.read_text())\n"
            "log.open('a').write('x')\n"
            f"printed = json.load(open({str(folder / 'printed')!r}))\n"
            "print(printed[min(number, len(printed) - 1)])\n"
            f"print('az: please run az login', file=sys.stderr); sys.exit({status})\n"
        )
        (folder / "token").chmod(stat.S_IRWXU)

    @property
    def num_runs(self):
        return len(self.log.read_text())


def lets_in(token, value=RESPONSE):
    """An endpoint that answers who shows this token."""

    async def reply(request):
        if request.headers.get("authorization") == f"Bearer {token}":
            return web.json_response(value)
        error = {"code": "Unauthorized", "message": f"no: {request.headers['authorization']}"}
        return web.json_response({"error": error}, status=401)

    return reply


@pytest.mark.parametrize(
    "settings, url",
    [
        ({}, "/openai/v1/responses"),
        ({"api_version": "preview"}, "/openai/v1/responses?api-version=preview"),
        ({"upstream_api": "chat_completions"}, "/openai/v1/chat/completions"),
        (
            {"upstream_api": "chat_completions", "api_version": "2024-10-21"},
            "/openai/deployments/gpt-4o-mini/chat/completions?api-version=2024-10-21",
        ),
        (
            {"api_version": "2025-04-01-preview"},
            "/openai/responses?api-version=2025-04-01-preview",
        ),
    ],
)
@pytest.mark.parametrize("path", ["", "/", "/openai/v1/", "/openai"])
def test_a_deployment_is_asked_where_its_version_has_it(settings, url, path):
    is_chat = "upstream_api" in settings
    seen = []

    async def reply(request):
        seen.append(str(request.rel_url))
        return web.json_response(CHAT if is_chat else RESPONSE)

    endpoint = Endpoint(reply)
    answer = ask(endpoint, path=path, **settings)
    assert answer["output"][0]["content"][0]["text"] == "Hi"
    assert seen == [url] and endpoint.bodies[0]["model"] == "gpt-4o-mini"
    assert endpoint.headers[0]["api-key"] == "secret-key"
    assert "authorization" not in endpoint.headers[0]


def test_a_row_s_model_is_another_deployment():
    endpoint = Endpoint(gives(CHAT))
    old = {"upstream_api": "chat_completions", "api_version": "2024-10-21"}
    ask(endpoint, {**HI, "model": "gpt-4o v2"}, **old)
    assert endpoint.paths == ["/openai/deployments/gpt-4o v2/chat/completions"]


@pytest.mark.parametrize("old", [{}, {"api_version": "2024-10-21"}])
def test_an_unknown_deployment_is_named_and_not_asked_for_again(old):
    endpoint = Endpoint(UNKNOWN)
    with pytest.raises(ModelError) as caught:
        ask(endpoint, upstream_api="chat_completions", **old)
    said = str(caught.value)
    assert "answered 404: The API deployment for this resource does not exist" in said
    assert "gpt-4o-mini" in said and "\n" not in said
    assert len(endpoint.bodies) == 1 and not caught.value.terminal


@pytest.mark.parametrize(
    "given", [{}, {"api_key": "k", "azure_ad_token": "t"}], ids=["nobody", "two"]
)
def test_who_asks_must_be_clear(given):
    with pytest.raises(ValueError, match="give one of api_key, azure_ad_token, azure_token_comm"):
        at(**given)("http://x")


def test_a_token_that_was_given_is_shown_and_hidden_where_it_is_quoted():
    endpoint = Endpoint(lets_in("entra"))
    assert ask(endpoint, azure_ad_token="entra") == RESPONSE
    with pytest.raises(ModelError, match=r"answered 401: no: Bearer \*\*\*\*") as caught:
        ask(endpoint, azure_ad_token="expired-token")
    assert "expired-token" not in caught.value.body and len(endpoint.bodies) == 2


def test_a_command_s_token_is_kept_while_it_lasts(tmp_path):
    token = jwt("a", 3600)
    printer = Printer(tmp_path, [token])

    async def use(model):
        return await asyncio.gather(*(model.responses(HI) for _ in range(5)))

    answers = with_model(Endpoint(lets_in(token)), use, at(azure_token_command=printer.command))
    assert answers == [RESPONSE] * 5 and printer.num_runs == 1


def test_a_token_is_renewed_before_it_expires_once_for_all(tmp_path):
    old, new = jwt("old", 60), jwt("new", 3600)
    printer = Printer(tmp_path, [old, new])

    async def use(model):
        model._tokens._asked_at -= 3600
        return await asyncio.gather(*(model.responses(HI) for _ in range(5)))

    answers = with_model(Endpoint(lets_in(new)), use, at(azure_token_command=printer.command))
    assert answers == [RESPONSE] * 5 and printer.num_runs == 2


def test_a_token_that_is_refused_is_renewed_and_the_request_sent_again(tmp_path):
    printer = Printer(tmp_path, ["revoked", '{"accessToken": "good", "expires_on": 9e12}'])
    endpoint = Endpoint(lets_in("good"))

    async def use(model):
        model._tokens._asked_at -= 3600
        return await model.responses(HI)

    answer = with_model(endpoint, use, at(azure_token_command=printer.command))
    assert answer["output"] == RESPONSE["output"]
    assert printer.num_runs == 2 and len(endpoint.bodies) == 2


def test_a_token_that_is_refused_as_soon_as_it_is_there_is_not_renewed_for_ever(tmp_path):
    printer = Printer(tmp_path, [f"token-{number}" for number in range(20)])
    endpoint = Endpoint(lets_in("good"))
    with pytest.raises(ModelError, match="answered 401") as caught:
        ask(endpoint, azure_token_command=printer.command)
    assert printer.num_runs == 1 and len(endpoint.bodies) == 1
    assert not caught.value.retryable and "token-0" not in str(caught.value)


@pytest.mark.parametrize(
    "command, words",
    [
        ("/nowhere/az", "cannot be run"),
        ("false", "ended with status 1"),
        ("true", "printed no token"),
        ("sh -c 'echo please log in >&2; exit 3'", "status 3: please log in"),
        ("'", "cannot be run"),
    ],
)
def test_a_command_without_a_token_stops_the_start_in_one_line(command, words):
    with pytest.raises(ConfigError, match=words) as caught:
        ask(Endpoint(gives(RESPONSE)), azure_token_command=command)
    assert "policy_model: azure_token_command" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_token_that_still_holds_is_shown_where_there_is_no_other():
    async def main():
        now, given = [0.0], [tokens.Token("old", 400.0)]

        async def source():
            if not given:
                raise ModelError("no network", status=503)
            return given.pop()

        found = tokens.Tokens(source, now=lambda: now[0])
        said = [await found.current()]
        now[0] = 350.0
        said.append(await found.current())
        now[0] = 401.0
        with pytest.raises(ModelError, match="no network"):
            await found.current()
        return said

    assert asyncio.run(main()) == ["old", "old"]


@pytest.mark.parametrize(
    "printed, value",
    [
        (b"abc\n", "abc"),
        (b'"abc"\n', "abc"),
        (b'{"accessToken": "abc", "expiresOn": "2030-01-01"}', "abc"),
        (b'{"access_token": "abc", "expires_on": "4000000000"}', "abc"),
    ],
)
def test_tokens_are_read_however_they_are_printed(printed, value):
    found = tokens.read(printed)
    assert found.value == value and found.expires_at > 3e9


def test_azure_identity_is_asked_where_it_is_installed(monkeypatch):
    asked = []

    class DefaultAzureCredential:
        def get_token(self, scope):
            asked.append(scope)
            return types.SimpleNamespace(token="managed", expires_on=time.time() + 3600)

    package = types.ModuleType("azure.identity")
    package.DefaultAzureCredential = DefaultAzureCredential
    monkeypatch.setitem(sys.modules, "azure", types.ModuleType("azure"))
    monkeypatch.setitem(sys.modules, "azure.identity", package)
    assert ask(Endpoint(lets_in("managed")), use_azure_identity=True) == RESPONSE
    assert asked == ["https://cognitiveservices.azure.com/.default"]


def test_azure_identity_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(ConfigError, match=r"pip install .rollout-kit.azure."):
        ask(Endpoint(gives(RESPONSE)), use_azure_identity=True)


def test_where_and_as_whom_it_asks_does_not_change_what_is_generated():
    model = at(api_key="secret-key", api_version="2024-10-21", stream=True)("http://x")
    assert model.describe()["settings"] == {"azure_deployment": "gpt-4o-mini"}
    assert model.describe()["model"] == "gpt-4o-mini"
