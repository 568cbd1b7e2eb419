"""Endpoints behind what companies put before them: proxies, their own authority, certificates."""

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
import uvloop
from claims import assert_prints
from command import as_function
from endpoint import Endpoint, endpoint, says
from proxy import NAME, proxy_beside
from support import HANG_S

from rollout_kit.api.testing import making
from rollout_kit.errors import ConfigError, PeerUnreachable
from rollout_kit.serving import registry
from rollout_kit.serving.transport.access import is_loopback
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.network import (
    Network,
    Origin,
    Proxy,
    find_exempt,
    read_network,
)
from rollout_kit.serving.transport.peers import Peers

WHO = "bob:p%40ss:word"
"""As it stands in a URL; the password is "p@ss:word"."""

SECRET = "p@ss:word"

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_network_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = str(tmp_path / "company.pem")
    authority.cert_pem.write_to_path(path)
    return path


@pytest.fixture
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1", NAME).configure_cert(context)
    return context


def named(url: str) -> str:
    """The URL with the name that only the proxy knows."""
    return url.replace("127.0.0.1", NAME)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("kind", ["http", "https", "socks5"])
@pytest.mark.parametrize("user", ["", WHO])
def test_requests_take_the_way_through_a_proxy(
    loop: Callable[[], asyncio.AbstractEventLoop],
    kind: str,
    is_encrypted: bool,
    user: str,
    ca_file: str,
    server_tls: ssl.SSLContext,
) -> None:
    tls = server_tls if is_encrypted else None
    own = server_tls if kind == "https" else None
    known = user.replace("%40", "@")

    async def ask(url: str, network: Network) -> list[bytes]:
        client = HttpClient(network=network)
        try:
            body = b'{"input": [{"content": "x"}]}'
            replies = [await client.post(url, body, timeout_s=HANG_S) for _ in range(3)]
            return [reply.raw for reply in replies]
        finally:
            await client.close()

    with (
        endpoint(says(lambda body: "y"), tls=tls) as there,
        proxy_beside(kind, known, own) as proxy,
        asyncio.Runner(loop_factory=loop) as runner,
    ):
        url = f"{named(there.url)}/responses".replace("http:", "https:" if tls else "http:")
        raws = runner.run(ask(url, read_network(proxy.url(kind, user), ca_file)))
        assert all(b'"y"' in raw for raw in raws)
        assert len(there.requests) == 3
        assert len(proxy.seen) == 1, "one connection carried all"
        if user:
            for refused in ("", "bob:wrong"):
                network = read_network(proxy.url(kind, refused), ca_file)
                with pytest.raises(PeerUnreachable, match="through the proxy") as caught:
                    runner.run(ask(url, network))
                assert not caught.value.retryable
                assert SECRET not in str(caught.value)
            assert proxy.refused == 2


def test_what_a_proxy_refuses_is_said() -> None:
    def ask(url: str, proxy: str) -> PeerUnreachable:
        async def main() -> None:
            client = HttpClient(network=read_network(proxy))
            await client.post(url, b"{}", timeout_s=HANG_S)

        with pytest.raises(PeerUnreachable) as caught:
            asyncio.run(main())
        return caught.value

    with proxy_beside() as proxy, endpoint(says(lambda body: "y")) as no_proxy:
        forbidden = ask("https://closed.example/v1", proxy.url("http"))
        assert "it answered 403 Not from here when asked for closed.example:443" in str(forbidden)
        assert not forbidden.retryable
        port = urlsplit(no_proxy.url).port
        other = ask("https://api.example/v1", f"http://127.0.0.1:{port}")
        assert f"through the proxy http://127.0.0.1:{port}: it answered 4" in str(other)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = ask("https://api.example/v1", f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert nobody.retryable
    assert "through the proxy" in str(nobody)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("proxy.corp:3128", "http://proxy.corp:3128"),
        ("http://proxy.corp", "http://proxy.corp:80"),
        ("https://u:p@proxy.corp", "https://proxy.corp:443"),
        ("socks5h://u@[::1]:9", "socks5h://[::1]:9"),
    ],
)
def test_urls_of_proxies(url: str, expected: str) -> None:
    assert str(Proxy.parse(url)) == expected


@pytest.mark.parametrize("url", ["ftp://proxy:1", "http://", "http://u:pass:9x@h:port", "http://["])
def test_what_is_no_proxy_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="prox") as caught:
        Proxy.parse(url)
    assert "pass" not in str(caught.value).replace("user:password", "")


@pytest.mark.parametrize(
    ("entries", "host", "port", "expected"),
    [
        ("", "a.com", 443, False),
        ("*", "a.com", 443, True),
        ("a.com", "a.com", 443, True),
        ("a.com", "A.COM.", 443, True),
        ("a.com", "b.a.com", 443, True),
        ("a.com", "ba.com", 443, False),
        (".a.com", "b.a.com", 443, True),
        ("*.a.com", "b.a.com", 443, True),
        ("x , a.com", "a.com", 443, True),
        ("a.com:8080", "a.com", 443, False),
        ("a.com:8080", "a.com", 8080, True),
        ("10.0.0.0/8", "10.2.3.4", 443, True),
        ("10.0.0.0/8", "11.2.3.4", 443, False),
        ("10.2.3.4", "10.2.3.4", 443, True),
        ("fd00::/8", "fd00::1", 443, True),
        ("[fd00::1]:80", "fd00::1", 80, True),
        ("[fd00::1]:80", "fd00::1", 443, False),
        (".", "a.com", 443, False),
        (",", "a.com", 443, False),
    ],
)
def test_a_list_of_exempt_hosts(entries: str, host: str, port: int, expected: bool) -> None:
    assert find_exempt(entries)(Origin(host, port, True)) is expected


def test_the_environment_names_proxies_and_what_they_are_not_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def way(url: str) -> str:
        parts = urlsplit(url)
        is_encrypted = parts.scheme == "https"
        port = parts.port or (443 if is_encrypted else 80)
        origin = Origin(str(parts.hostname), port, is_encrypted)
        return str(read_network().proxy_for(origin))

    assert way("https://api.com") == "None"
    monkeypatch.setenv("ALL_PROXY", "socks5://all:1")
    assert way("https://api.com") == "socks5://all:1"
    monkeypatch.setenv("HTTPS_PROXY", "http://upper:1")
    assert (way("https://api.com"), way("http://api.com")) == ("http://upper:1", "socks5://all:1")
    monkeypatch.setenv("https_proxy", "http://lower:1")
    assert way("https://api.com") == "http://lower:1", "as curl and Python read them"
    monkeypatch.setenv("NO_PROXY", "api.com")
    assert (way("https://api.com"), way("https://other.com")) == ("None", "http://lower:1")
    for host in ("localhost", "127.0.0.1", "127.3.4.5", "[::1]"):
        assert way(f"https://{host}:8000") == "None"
    assert is_loopback("LOCALHOST")
    given = Origin("api.com", 443, True)
    assert read_network("none").proxy_for(given) is None
    assert str(read_network("http://own:1").proxy_for(given)) == "http://own:1"
    monkeypatch.setenv("HTTPS_PROXY", "")
    monkeypatch.setenv("https_proxy", "ftp://old")
    with pytest.raises(ConfigError, match="HTTPS_PROXY begins with ftp://"):
        read_network()


def test_files_that_cannot_be_used_are_named(tmp_path: Path, authority: trustme.CA) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    own, other = authority.issue_cert("me"), authority.issue_cert("you")
    own.cert_chain_pems[0].write_to_path(str(pem := tmp_path / "me.pem"))
    other.private_key_pem.write_to_path(str(key := tmp_path / "you.key"))
    for given, message in (
        ({"ca_file": str(tmp_path / "none.pem")}, "ca_file .*none.pem: .*No such file"),
        ({"ca_file": str(wrong)}, "ca_file .*wrong.pem: it has no certificate in PEM"),
        ({"client_certificate": str(wrong)}, "client_certificate .*wrong.pem: not in PEM"),
        ({"client_certificate": str(pem), "client_key": str(key)}, "the key is another one's"),
        ({"client_key": str(key)}, "client_key: set client_certificate as well"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_network(**given)


def test_an_endpoint_that_asks_for_a_certificate_gets_it(
    tmp_path: Path, authority: trustme.CA, ca_file: str, server_tls: ssl.SSLContext
) -> None:
    authority.configure_trust(server_tls)
    server_tls.verify_mode = ssl.CERT_REQUIRED
    me = authority.issue_cert("me@corp.example")
    me.private_key_and_cert_chain_pem.write_to_path(str(pem := tmp_path / "me.pem"))
    encrypted = tmp_path / "me.key"
    command = f"openssl pkey -aes256 -passout pass:opensesame -in {pem} -out {encrypted}"
    subprocess.run(command.split(), check=True, capture_output=True)
    me.cert_chain_pems[0].write_to_path(str(certificate := tmp_path / "certificate.pem"))

    def ask(url: str, **keys: str) -> str:
        async def main() -> str:
            server = registry.load("responses_api_models", "openai_model")
            given = {"openai_base_url": url, "openai_api_key": "none", "openai_model": "m"}
            model = making(server, **given, ca_file=ca_file, max_tries=1, **keys)(Peers({}), "m")
            await model.start()
            try:
                return (await model.responses({"input": [{"content": "x"}]}))["id"]
            finally:
                await model.stop()

        return asyncio.run(main())

    with endpoint(says(lambda body: "y"), tls=server_tls) as there:
        url = there.url.replace("http:", "https:")
        apart = {"client_certificate": str(certificate), "client_key": str(encrypted)}
        assert ask(url, client_certificate=str(pem))
        assert ask(url, **apart, client_key_password="opensesame")
        assert len(there.requests) == 2
        with pytest.raises(ConfigError, match="its key is encrypted: set client_key_password"):
            ask(url, **apart)
        with pytest.raises(Exception, match=r"cannot connect|broke off"):
            ask(url)
        assert len(there.requests) == 2


def rows(folder: Path, number: int) -> Path:
    path = folder / "rows.jsonl"
    lines = [
        {
            "responses_create_params": {"input": [{"role": "user", "content": f"{n}"}]},
            "expected_answer": f"{n}",
            "extraction_mode": "final_answer",
            "agent_ref": {"name": "string_match_simple_agent"},
        }
        for n in range(number)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def collect(folder: Path, url: str, number: int, *words: str) -> list[str]:
    """The lines that ng_collect_rollouts has written."""
    models = "responses_api_models/openai_model/configs/openai_model.yaml"
    configs = f"[{models},resources_servers/string_match/configs/string_match.yaml]"
    argv = [
        f"+config_paths={configs}",
        "+agent_name=string_match_simple_agent",
        f"+input_jsonl_fpath={rows(folder, number)}",
        f"+output_jsonl_fpath={folder / 'rollouts.jsonl'}",
        f"+policy_base_url={url}",
        "+policy_api_key=none",
        "+policy_model_name=m",
        *words,
    ]
    with pytest.raises(SystemExit) as ended:
        as_function("ng_collect_rollouts")(argv)
    path = folder / "rollouts.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    assert ended.value.code or len(lines) == number
    return lines


OF_POLICY = "++policy_model.responses_api_models.openai_model."


def test_rollouts_through_a_proxy_with_a_password_to_an_authority_of_the_company(
    tmp_path: Path,
    ca_file: str,
    server_tls: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    answers = says(lambda body: f"Answer: {body['input'][0]['content']}")
    with endpoint(answers, tls=server_tls) as there, proxy_beside(user="bob:p@ss:word") as proxy:
        url = named(there.url).replace("http:", "https:")
        monkeypatch.setenv("HTTPS_PROXY", proxy.url("http"))
        (tmp_path / "refused").mkdir()
        assert not collect(tmp_path / "refused", url, 50, f"{OF_POLICY}ca_file={ca_file}")
        said = capfd.readouterr().out
        [line] = [line for line in said.splitlines() if "407" in line]
        line = line.replace(proxy.url("http"), "http://proxy.corp.example:3128")
        line = line.replace(url.removesuffix("/v1"), "https://api.openai.com")
        assert_prints("docs/networks.md", "50 × policy_model", line)
        assert not there.requests

        monkeypatch.setenv("HTTPS_PROXY", proxy.url("http", WHO))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", ca_file)
        lines = collect(tmp_path, url, 500)
        assert {json.loads(line)["reward"] for line in lines} == {1.0}
        assert len(there.requests) == 500
        said = capfd.readouterr()
        everything = f"{said.out}{said.err}{lines}"
        assert SECRET not in everything
        assert "p%40ss" not in everything


PROXIES = {
    "tinyproxy": "Port {port}\nListen 127.0.0.1\nBasicAuth bob secret9\nConnectPort {there}\n",
    "squid": """
http_port 127.0.0.1:{port}
auth_param basic program {helper} {folder}/users
acl known proxy_auth REQUIRED
http_access allow known
pid_filename {folder}/pid
cache_log {folder}/log
access_log none
shutdown_lifetime 0
""",
    "microsocks": "",
}


HELPER = """#!/bin/sh
while read who; do [ "$who" = "bob secret9" ] && echo OK || echo ERR; done
"""


@contextmanager
def installed(name: str, there: int) -> Iterator[tuple[str, int]]:
    """A proxy from a distribution's packages, with bob and his password; its kind and port."""
    program = shutil.which(name, path="/usr/bin:/usr/sbin:/usr/local/bin:/opt/homebrew/bin")
    if program is None:
        pytest.skip(f"{name} is not installed")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    folder = Path(tempfile.mkdtemp())  # which the user can read that squid becomes
    folder.chmod(0o777)
    helper = folder / "helper.sh"
    helper.write_text(HELPER)
    helper.chmod(0o755)
    (folder / "conf").write_text(
        PROXIES[name].format(port=port, there=there, folder=folder, helper=helper)
    )
    words = {
        "tinyproxy": ["-d", "-c", str(folder / "conf")],
        "squid": ["-N", "-f", str(folder / "conf")],
        "microsocks": ["-i", "127.0.0.1", "-p", str(port), "-u", "bob", "-P", "secret9"],
    }[name]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([program, *words], **quiet) as process:
        try:
            wait_for(port, process)
            yield ("socks5" if name == "microsocks" else "http"), port
        finally:
            process.kill()
            shutil.rmtree(folder)


def wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert process.poll() is None, "the proxy ended"


@pytest.mark.parametrize("name", PROXIES)
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_rollouts_through_proxies_that_companies_have(
    name: str,
    is_encrypted: bool,
    tmp_path: Path,
    ca_file: str,
    server_tls: ssl.SSLContext,
) -> None:
    answers = says(lambda body: f"Answer: {body['input'][0]['content']}")
    running: AbstractContextManager[Endpoint]
    running = endpoint(answers, tls=server_tls if is_encrypted else None)
    with running as there:
        own = int(urlsplit(there.url).port or 0)
        with installed(name, own) as (kind, port):
            url = there.url.replace("http:", "https:" if is_encrypted else "http:")
            keys = [
                f"{OF_POLICY}ca_file={ca_file}",
                f"{OF_POLICY}proxy={kind}://bob:secret9@127.0.0.1:{port}",
            ]
            lines = collect(tmp_path, url, 100, *keys)
            assert {json.loads(line)["reward"] for line in lines} == {1.0}
            refused = [keys[0], f"{OF_POLICY}proxy={kind}://bob:wrong@127.0.0.1:{port}"]
            (tmp_path / "refused").mkdir()
            assert not collect(tmp_path / "refused", url, 10, *refused)
            assert len(there.requests) == 100
