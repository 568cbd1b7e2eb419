"""The HTTP client against raw sockets: every way in which a reply can come, or not come."""

import asyncio
import errno
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from support import HANG_S
from virtual_time import run_linked

from rollout_kit.errors import PeerError, PeerLost, PeerTimeout, PeerUnreachable
from rollout_kit.serving.transport import http
from rollout_kit.serving.transport.connection import Connection
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.network import Network

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture(autouse=True, params=["asyncio", "uvloop"])
def _both_event_loops(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "uvloop":
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    yield
    asyncio.set_event_loop_policy(None)


Answer = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(
    answer: Answer | bytes, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that reads whole requests and answers each; its URL, and the heads that came."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or b"0"))
                heads.append(head)
                if isinstance(answer, bytes):
                    writer.write(answer)
                else:
                    await answer(head, reader, writer)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    try:
        yield f"{'https' if tls else 'http'}://{name}:{port}", heads
    finally:
        server.close()


@asynccontextmanager
async def client_of(*limits: int, **options: Any) -> AsyncIterator[HttpClient]:
    client = HttpClient(*limits, **options)
    try:
        yield client
    finally:
        await client.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not holds():  # noqa: ASYNC110  the other end of a socket decides
            await asyncio.sleep(0.001)


def is_idle(client: HttpClient) -> bool:
    """Whether an open connection waits for a request."""
    return any(each.is_open for host in client._hosts.values() for each in host._idle)


def said(answer: Answer | bytes, **options) -> http.Reply:
    """The reply to one request."""
    return asyncio.run(replied(answer, **options))


async def replied(answer: Answer | bytes, **options) -> http.Reply:
    async with answering(answer) as (url, _), client_of() as client:
        return await client.post(url, b"{}", **{"timeout_s": HANG_S, **options})


def in_pieces(raw: bytes, at: int) -> Answer:
    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        writer.write(raw[:at])
        await writer.drain()
        await asyncio.sleep(0.001)
        writer.write(raw[at:])

    return answer


def then_closed(raw: bytes) -> Answer:
    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        writer.write(raw)
        writer.close()

    return answer


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'5\r\n{"a":\r\n3;x=y\r\n 1}\r\n0\r\ntrailer: 1\r\n\r\n'
)


@pytest.mark.parametrize("raw", [OK, CHUNKED], ids=["length", "chunked"])
def test_a_reply_may_come_in_two_pieces_cut_anywhere(raw: bytes) -> None:
    async def main() -> set[bytes]:
        found = set()
        for at in range(1, len(raw)):
            async with answering(in_pieces(raw, at)) as (url, _), client_of() as client:
                found.add((await client.post(url, b"{}", timeout_s=HANG_S)).raw)
        return found

    assert asyncio.run(main()) == {b"{}" if raw is OK else b'{"a": 1}'}


def test_a_reply_without_a_length_lasts_until_the_connection_ends() -> None:
    assert said(then_closed(b"HTTP/1.1 200 OK\r\n\r\n{}")).raw == b"{}"
    assert said(then_closed(b"HTTP/1.0 503 Busy\r\n\r\n")).status == 503


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}",
        CHUNKED[:-12],
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
    ids=["nothing", "in the head", "in the body", "in a chunk", "before the reply"],
)
def test_a_reply_that_is_cut_off_is_lost_and_never_taken_for_whole(raw: bytes) -> None:
    with pytest.raises(PeerLost, match="before its reply ended"):
        said(then_closed(raw))


@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH\r\n", b"\x00\x01\x02", b"{}\n" * 500])
def test_what_is_not_http_is_lost(raw: bytes) -> None:
    with pytest.raises(PeerLost, match="not HTTP"):
        said(raw)


def test_a_reset_is_lost() -> None:
    async def reset(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        writer.write(OK[:-1])
        await writer.drain()
        assert isinstance(writer.transport, asyncio.Transport)
        writer.transport.abort()

    with pytest.raises(PeerLost, match="broke off"):
        said(reset)


def test_what_comes_before_the_reply_is_passed_over() -> None:
    reply = said(b"HTTP/1.1 100 Continue\r\nx: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + OK)
    assert (reply.status, reply.raw, reply.headers.get("x")) == (200, b"{}", "")


def test_a_compressed_body_is_decompressed_though_nobody_asked_for_it() -> None:
    for name, packed in (("gzip", gzip.compress(b"{}")), ("deflate", zlib.compress(b"{}"))):
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {name}\r\ncontent-length: {len(packed)}"
        assert said(head.encode() + b"\r\n\r\n" + packed).raw == b"{}"
    with pytest.raises(PeerLost, match="decompressed"):
        said(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}")


def test_headers_are_found_in_any_case_and_more_than_once() -> None:
    headers = said(
        OK.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n\r\n")
    ).headers
    assert headers.getall("Set-Cookie") == ["a=1", "b=2"]
    assert headers.get("retry-after") == "" and headers.get("CONTENT-LENGTH") == "2"


def test_one_connection_serves_request_after_request() -> None:
    async def main() -> int:
        opened = set()

        async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
            opened.add(writer.get_extra_info("peername"))
            writer.write(OK)

        async with answering(answer) as (url, heads), client_of() as client:
            for _ in range(20):
                assert (await client.post(url + "/v1/x?y=ä b", b"{}")).raw == b"{}"
            assert heads[0].startswith(b"POST /v1/x?y=%C3%A4%20b HTTP/1.1\r\nhost: 127.0.0.1:")
            return len(opened)

    assert asyncio.run(main()) == 1


@pytest.mark.parametrize(
    "raw",
    [
        OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
        OK.replace(b"1.1", b"1.0"),
        OK + OK,
    ],
    ids=["told to close", "old", "more than one reply"],
)
def test_a_connection_that_cannot_be_used_again_is_not(raw: bytes) -> None:
    async def main() -> int:
        opened = set()

        async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
            opened.add(writer.get_extra_info("peername"))
            writer.write(raw)

        async with answering(answer) as (url, _), client_of() as client:
            for _ in range(3):
                assert (await client.post(url, b"{}", timeout_s=HANG_S)).raw == b"{}"
                await asyncio.sleep(0.01)
            return len(opened)

    assert asyncio.run(main()) == 3


def test_a_connection_closed_while_idle_is_replaced() -> None:
    async def main() -> None:
        async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
            writer.write(OK)
            answered.append(writer)

        answered: list[asyncio.StreamWriter] = []
        async with answering(answer) as (url, _), client_of() as client:
            for _ in range(3):
                assert (await client.get(url)).status == 200
                answered[-1].close()
                await until(lambda: not is_idle(client))
        assert len(answered) == 3

    asyncio.run(main())


def test_idle_connections_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "KEEP_ALIVE_S", 0.15)

    async def main() -> int:
        ended = 0

        async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
            nonlocal ended
            writer.write(OK)
            assert await reader.read() == b""
            ended += 1

        async with answering(answer) as (url, _), client_of() as client:
            await asyncio.gather(*(client.get(url) for _ in range(5)))
            await until(lambda: ended == 5)
            return ended

    assert asyncio.run(main()) == 5


def test_a_request_given_up_ends_its_connection_and_the_next_is_answered() -> None:
    async def main() -> None:
        async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
            if b"slow" in head:
                await given_up.wait()
            writer.write(OK.replace(b"{}", b"{}" if b"fast" in head else b"[]"))
            answered.append(head)

        given_up, answered = asyncio.Event(), list[bytes]()
        async with answering(answer) as (url, heads), client_of() as client:
            with pytest.raises(PeerTimeout, match=r"within 0\.05 s"):
                await client.get(f"{url}/slow", timeout_s=0.05)
            waiting = asyncio.create_task(client.get(f"{url}/slow"))
            await until(lambda: len(heads) == 2)
            waiting.cancel()
            assert (await client.get(f"{url}/fast")).raw == b"{}"
            given_up.set()
            await until(lambda: len(answered) == 3)
            for _ in range(3):
                assert (await client.get(f"{url}/fast")).raw == b"{}"

    asyncio.run(main())


@pytest.mark.parametrize("limits", [(2, 0), (0, 2)])
def test_the_limits_bound_the_connections(limits: tuple[int, int]) -> None:
    async def main() -> int:
        now = most = 0

        async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1
            writer.write(OK)

        async with answering(answer) as (url, _), client_of(*limits) as client:
            await asyncio.gather(*(client.get(url) for _ in range(12)))
        return most

    assert asyncio.run(main()) == 2


def test_a_closed_client_leaves_nobody_waiting() -> None:
    async def main() -> None:
        async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
            await reader.read()

        async with answering(answer) as (url, heads):
            client = HttpClient()
            waiting = asyncio.create_task(client.get(url))
            await until(lambda: bool(heads))
            await client.close()
            with pytest.raises(PeerLost, match="the client was closed"):
                await waiting

    asyncio.run(main())


def test_a_host_that_answers_on_its_second_address_only_is_reached() -> None:
    async def main() -> None:
        async with answering(OK) as (url, heads), client_of() as client:
            named = url.replace("127.0.0.1", "localhost")  # which is ::1 first, where there is one
            await asyncio.gather(*(client.get(named) for _ in range(50)))
            assert len(heads) == 50

    asyncio.run(main())


def test_a_six_byte_address_is_written_in_brackets() -> None:
    async def main() -> None:
        async with answering(OK, host="::1") as (url, heads), client_of() as client:
            await client.get(url)
            assert b"host: [::1]:" in heads[0]

    try:
        asyncio.run(main())
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")


def test_a_name_and_password_in_the_url_are_sent_as_basic_authorization() -> None:
    async def main() -> bytes:
        async with answering(OK) as (url, heads), client_of() as client:
            await client.get(url.replace("//", "//me:p%40ss@"))
            return heads[0]

    assert b"authorization: Basic bWU6cEBzcw==\r\n" in asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:80/x", "not an http"),
        ("ftp://x/", "not an http"),
        ("http://", "not an http"),
        ("http://x:99999/", "[Pp]ort"),
    ],
)
def test_what_is_no_url_is_said_at_once(url: str, message: str) -> None:
    async def main() -> None:
        async with client_of() as client:
            with pytest.raises(PeerError, match=message) as caught:
                await client.get(url)
            assert not caught.value.retryable

    asyncio.run(main())


@pytest.mark.parametrize("key", ["sk-1\n", "sk-1\r\nx: y", "sk-\0", "sk-✓"])
def test_a_header_that_cannot_be_sent_is_named_and_its_value_not_shown(key: str) -> None:
    async def main() -> None:
        async with answering(OK) as (url, heads), client_of() as client:
            with pytest.raises(PeerError, match="'authorization' contains a line break") as caught:
                await client.post(url, b"{}", headers={"authorization": key})
            assert "sk-" not in str(caught.value) and not heads

    asyncio.run(main())


def test_nobody_there_and_no_such_host_are_unreachable() -> None:
    async def main() -> None:
        async with client_of() as client:
            async with answering(OK) as (url, _):
                pass
            with pytest.raises(PeerUnreachable, match="refused"):
                await client.get(url)
            with pytest.raises(PeerUnreachable, match="cannot connect to http://no-such"):
                await client.get("http://no-such-host.invalid/")

    asyncio.run(main())


def test_https_is_spoken_with_who_can_show_a_certificate_and_with_nobody_else(
    tmp_path: Path,
) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trusting = Network(ca_file=str(tmp_path / "ca.pem"))

    async def main() -> None:
        async with answering(OK, tls=context) as (url, heads):
            async with client_of() as client:
                with pytest.raises(PeerUnreachable, match=r"(?i)certificate"):
                    await client.post(url, b"secret", timeout_s=HANG_S)
                assert not heads
            async with client_of(network=trusting) as client:
                for _ in range(3):
                    reply = await client.post(url, b"{}" * 100_000, timeout_s=HANG_S)
                    assert reply.raw == b"{}"

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        plain = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = plain.sockets[0].getsockname()[1]
        async with plain, client_of() as client:
            with pytest.raises(PeerUnreachable, match="does not speak TLS") as caught:
                await client.get(f"https://127.0.0.1:{port}", timeout_s=HANG_S)
            assert not caught.value.retryable

    asyncio.run(main())


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def test_a_stream_is_handed_over_as_it_comes() -> None:
    goes_on = asyncio.Event()

    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        writer.write(STREAM + b"2\r\nab\r\n")
        await goes_on.wait()  # which it can only have been told of
        writer.write(b"2\r\ncd\r\n0\r\n\r\n")

    pieces: list[bytes] = []

    def arrived(piece: bytes) -> None:
        pieces.append(piece)
        goes_on.set()

    reply = said(answer, arrived=arrived)
    assert (pieces, reply.status, reply.raw) == ([b"ab", b"cd"], 200, b"")


@pytest.mark.parametrize(
    "raw",
    [
        OK,
        OK.replace(b"200 OK", b"429 Too Many Requests"),
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(gzip.compress(b"{}")), gzip.compress(b"{}")),
    ],
    ids=["whole", "refused", "packed"],
)
def test_what_is_no_plain_stream_comes_whole_though_one_was_asked_for(raw: bytes) -> None:
    pieces: list[bytes] = []
    assert said(raw, arrived=pieces.append).raw == b"{}" and not pieces


def test_a_stream_that_breaks_off_is_lost() -> None:
    pieces: list[bytes] = []
    with pytest.raises(PeerLost, match="broke off"):
        said(then_closed(STREAM + b"2\r\nab\r\n"), arrived=pieces.append)
    assert pieces == [b"ab"]


def test_a_stream_may_last_and_must_not_fall_silent() -> None:
    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        writer.write(STREAM)
        for _ in range(12):
            await asyncio.sleep(8)
            writer.write(b"2\r\nab\r\n")
        await reader.read()

    pieces: list[bytes] = []
    with pytest.raises(PeerTimeout, match="fell silent for 10 s"):
        run_linked(replied(answer, arrived=pieces.append, timeout_s=10))
    assert b"".join(pieces) == b"ab" * 12


@pytest.mark.parametrize("allowed", [3, 100])
def test_a_client_opens_no_more_connections_than_there_are_descriptors(
    monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    """Whether the limit is known or the system tells it with EMFILE: requests wait."""

    async def main() -> None:
        loop, num_open, most = asyncio.get_running_loop(), 0, 0
        connect = loop.create_connection

        async def create_connection(*args: Any, **keys: Any) -> Any:
            nonlocal num_open, most
            if num_open >= 3:
                raise OSError(errno.EMFILE, "Too many open files")
            num_open += 1
            most = max(most, num_open)
            return await connect(*args, **keys)

        async def answer(_: bytes, __: object, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0)
            writer.write(OK)

        class Counted(Connection):
            def connection_lost(self, exc: Exception | None) -> None:
                nonlocal num_open
                num_open -= 1
                super().connection_lost(exc)

        monkeypatch.setattr(http, "max_connections", lambda: allowed)
        monkeypatch.setattr(http, "Connection", Counted)
        monkeypatch.setattr(loop, "create_connection", create_connection)
        async with (
            answering(answer) as (one, _),
            answering(answer) as (two, _),
            client_of() as client,
        ):
            asked = (client.post(url, b"{}") for url in [one, two] * 20)
            replies = await asyncio.gather(*asked)
        assert [reply.status for reply in replies] == [200] * 40
        assert most <= 3

    run_linked(main())


def endless(head: bytes, piece: bytes) -> Answer:
    async def answer(_: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        writer.write(head)
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(piece)
                await writer.drain()

    return answer


def packed(encoding: str, raw: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


BOMB = b'"' + b"0" * 20_000_000 + b'"'


@pytest.mark.parametrize(
    "answer",
    [
        endless(b"HTTP/1.1 200 OK\r\n\r\n", b"0" * 60_000),
        endless(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", b"0" * 60_000),
        endless(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"2\r\n{}\r\n" * 9_000),
        endless(b"HTTP/1.1 200 OK\r\nx: ", b"0" * 60_000),
        endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000),
        endless(STREAM, b"4\r\nab\n\n\r\n" * 6_000),
        packed("gzip", gzip.compress(BOMB)),
        packed("deflate", zlib.compress(BOMB)),
    ],
    ids=["close", "length", "chunks", "header", "continue", "stream", "gzip", "deflate"],
)
def test_a_reply_without_end_is_refused_once(answer: Answer | bytes) -> None:
    async def main() -> int:
        async with answering(answer) as (url, heads):
            client = HttpClient(max_reply_mb=1)
            try:
                with pytest.raises(PeerError, match="more than max_reply_mb=1") as raised:
                    await client.post(url, b"{}", timeout_s=HANG_S, arrived=lambda piece: None)
            finally:
                await client.close()
            assert not raised.value.retryable
            return len(heads)

    assert asyncio.run(main()) == 1


def test_a_reply_that_is_large_enough_arrives() -> None:
    assert said(packed("gzip", gzip.compress(BOMB))).raw == BOMB
    with pytest.raises(PeerLost, match="cannot be decompressed: incomplete"):
        said(packed("gzip", gzip.compress(BOMB)[:-20]))
