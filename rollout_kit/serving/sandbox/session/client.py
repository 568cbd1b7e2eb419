"""Sessions, for servers: start the warden, make sessions, and use them."""

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any, Self

from ....errors import ConfigError
from ....types import JsonObject
from ..container import Container
from ..limits import SandboxError
from ..pipes import sealed
from ..sandbox import find_places, with_requirements
from .bounds import CommandResult, SessionEnded, SessionLimits, SessionRefused
from .changes import Rules
from .ground import ENVIRONMENT, OPT_PACKAGES
from .output import Screen, Stream
from .starting import StartedWarden, explain, start_warden
from .terminal import Terminal

START_S, MAX_TERMINALS = 30.0, 16

MAX_MESSAGE = 100_000
"""Bytes of a request; larger texts go into a file."""


class Sessions:
    """Makes sessions that start from the folder `root`, or from this machine's programs with
    `packages`, installed here, and see `folders` (place → folder of this machine). `layers` are
    folders that lie over it, the uppermost first. All sessions end with this object, and with this
    process.

    With a `container`, this machine is that container, with the programs of its image.

    `num_ready` sessions with `limits` are made ahead, so that a caller does not wait."""

    def __init__(
        self,
        root: Path | None = None,
        packages: Sequence[str] = (),
        *,
        folders: Mapping[str, str] | None = None,
        layers: Sequence[Path] = (),
        limits: SessionLimits = SessionLimits(),
        num_ready: int = 0,
        container: Container | None = None,
    ) -> None:
        self._limits, self._num_ready = limits, num_ready
        self._ready: list[ShellSession] = []
        self._filling: asyncio.Task[None] | None = None
        wanted = () if container else packages  # an image has its own
        names = [name for package in wanted for name in with_requirements(package)]
        places = [place for name in dict.fromkeys(names) for place in find_places(name)]
        # the warden starts in another folder
        self._ground: JsonObject = {
            "root": os.path.abspath(root) if root else "",
            "packages": [str(each) for each in places],
            "folders": {place: os.path.abspath(each) for place, each in (folders or {}).items()},
            "layers": [str(each) for each in layers],
        }
        self._environment = {**ENVIRONMENT, **({"PYTHONPATH": OPT_PACKAGES} if places else {})}
        self._container = container
        self._warden: StartedWarden | None = None
        self._open: set[ShellSession] = set()

    async def start(self) -> None:
        """ConfigError if this machine cannot have sessions."""
        if sys.platform != "linux":
            raise ConfigError(explain("it does not run Linux", None))
        if (root := self._ground["root"]) and not await asyncio.to_thread(os.path.isdir, root):
            raise ConfigError(f"root: there is no folder {root}")
        for folder in (*self._ground["folders"].values(), *self._ground["layers"]):
            if not await asyncio.to_thread(os.path.isdir, folder):
                raise ConfigError(f"folders: there is no folder {folder}")
        why = ""
        try:
            self._warden = await start_warden(self._ground, self._container)
            async with self.session() as session:
                await session.exec("true")
        except (TimeoutError, OSError, SandboxError) as error:
            why = str(error) or "the warden did not start"
        if why:
            await self.close()
            raise ConfigError(explain(why, self._container))

    @property
    def num_open(self) -> int:
        return len(self._open)

    async def create(
        self,
        limits: SessionLimits | None = None,
        *,
        cwd: str = "/",
        environment: Mapping[str, str] | None = None,
    ) -> "ShellSession":
        """A new session; SandboxError if it cannot be made."""
        limits = limits or self._limits
        given = {**self._environment, **(environment or {})}
        self._ready = [each for each in self._ready if not each.why_ended]
        if limits == self._limits and self._ready:
            session = self._ready.pop()
            session.begin(cwd, given)
        else:
            session = await self._make(limits, cwd, given)
        if self._num_ready and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self._fill())
        return session

    async def _fill(self) -> None:
        """Make sessions ahead; a failure is for the caller who waits for the next one."""
        with suppress(SandboxError):
            while self._warden is not None and len(self._ready) < self._num_ready:
                made = await self._make(self._limits, "/", self._environment)
                self._ready.append(made)

    async def _make(
        self, limits: SessionLimits, cwd: str, given: Mapping[str, str]
    ) -> "ShellSession":
        if self._warden is None:
            raise SandboxError("sessions were not started, or have ended")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        session = ShellSession(ours, limits, cwd, given, self._open)
        try:
            with theirs:
                request = json.dumps({"limits": limits.to_json()}).encode()
                await _send(self._warden.control, request, [theirs.fileno()])
            async with asyncio.timeout(START_S):
                await session.ready
        except BaseException as error:
            session.close()
            if isinstance(error, OSError | TimeoutError):
                raise SandboxError(f"no session could be made: {error!r}") from None
            raise
        return session

    @asynccontextmanager
    async def session(
        self, limits: SessionLimits | None = None, **given: Any
    ) -> "AsyncIterator[ShellSession]":
        made = await self.create(limits, **given)
        try:
            yield made
        finally:
            made.close()

    async def close(self) -> None:
        """End all sessions, and wait until nothing of them is left."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)
        self._ready.clear()
        for session in list(self._open):
            session.close()
        if self._warden is not None:
            warden, self._warden = self._warden, None
            await warden.end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class ShellSession:
    """One session. A method raises SessionEnded after its end, SessionRefused for what the model
    asked wrongly."""

    def __init__(
        self,
        control: socket.socket,
        limits: SessionLimits,
        cwd: str,
        environment: Mapping[str, str],
        register: "set[ShellSession]",
    ) -> None:
        self.limits, self.cwd, self.environment = limits, cwd, dict(environment)
        self.user = ""
        """Whom commands and files belong to: a name or a number; empty is root."""
        self._control, self._register = control, register
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._streams: list[Stream] = []
        self._streams_of: dict[int, Sequence[Stream]] = {}
        """Those of each command that runs."""
        self._terminals: dict[int, Terminal] = {}
        self._next, self._num_killings = 0, 0
        self.why_ended = ""
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._receive)
        register.add(self)

    def begin(self, cwd: str, environment: Mapping[str, str]) -> None:
        """Take a session that was made ahead: its time begins now."""
        self.cwd, self.environment = cwd, dict(environment)
        with suppress(OSError):
            self._control.send(json.dumps({"op": "begin", "id": 0}).encode())

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float = 60.0,
        output_bytes: int = 20_000,
        stdin: bytes = b"",
        cwd: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a command of the shell. At its time limit its process group is killed."""
        began, number, ended_by = time.monotonic(), self._new_number(), ""
        killings = self._num_killings

        def stop(why: str) -> None:
            nonlocal ended_by
            ended_by = ended_by or why
            self._kill(number)

        streams = [Stream(output_bytes, lambda: stop("output")) for _ in range(2)]
        self._streams = [each for each in (*self._streams, *streams) if not each.is_closed]
        timer = self._loop.call_later(timeout_s, stop, "time")
        try:
            with sealed(stdin) as given:
                sinks = [given, *(each.sink for each in streams)]
                request = self._command(command, cwd, environment)
                asked = {"op": "exec", "has_input": bool(stdin), **request}
                reply = await self._ask(number, asked, sinks, streams)
        except BaseException:
            self._kill(number)
            for each in streams:
                each.close()
            raise
        finally:
            timer.cancel()
        stdout, stderr = (each.finish() for each in streams)
        if killings < self._num_killings:
            ended_by = "memory"
        return CommandResult(reply["status"], stdout, stderr, ended_by, time.monotonic() - began)

    def _command(
        self, command: str, cwd: str, environment: Mapping[str, str] | None
    ) -> dict[str, Any]:
        given = {**self.environment, **(environment or {})}
        if "\0" in command or "\0" in cwd:
            raise SessionRefused("a command has no zero bytes")
        try:
            command.encode()
        except UnicodeEncodeError as error:
            raise SessionRefused(f"a command is UTF-8 text: {error}") from None
        return {"command": command, "cwd": cwd or self.cwd, "env": given, "user": self.user}

    async def open_terminal(self, command: str, *, output_bytes: int = 20_000) -> "Terminal":
        """Start a command in a terminal; it runs on until it ends or the session does."""
        if len(self._terminals) >= MAX_TERMINALS:
            raise SessionRefused(f"a session has at most {MAX_TERMINALS} terminals: stop one")
        number = self._new_number()
        request = {"op": "terminal", "rows": 50, "columns": 160, **self._command(command, "", None)}
        started = await self._ask(number, request)
        if "master" not in started:
            raise SandboxError("a terminal could not be opened")

        def end() -> None:
            self._kill(number)
            self._terminals.pop(number, None)

        terminal = Terminal(Screen(started["master"], output_bytes), end)
        terminal.status = self._loop.create_future()
        self._waiting[number] = terminal.status
        self._terminals[number] = terminal
        return terminal

    async def listen(self) -> socket.socket:
        """A socket that programs of the session reach on 127.0.0.1. The caller closes it."""
        reply = await self._ask(self._new_number(), {"op": "listen"})
        return socket.socket(fileno=reply["master"])

    async def call(self, function: str, data: bytes | int = b"", **arguments: Any) -> Any:
        """Do one of `files.CALLS` as a process of the session; its answer and bytes."""
        number = self._new_number()
        out = Stream(64 << 20, lambda: self._kill(number))
        given = {"cwd": self.cwd, "user": self.user, **arguments}
        request = {"op": "call", "function": function, **given}
        try:
            if isinstance(data, int):
                await self._ask(number, request, [data, out.sink], [out])
            else:
                with sealed(data) as given:
                    await self._ask(number, request, [given, out.sink], [out])
            out.finish()
        finally:
            out.close()
        head, _, rest = bytes(out.kept._head).partition(b"\n")
        found = json.loads(head) if head else {"error": "it was killed"}
        if error := found.get("error"):
            raise SessionRefused(error)
        return found, rest

    async def read_bytes(self, path: str) -> bytes:
        return (await self.call("read", path=path))[1]

    async def write_bytes(self, path: str, data: bytes, mode: int | None = None) -> None:
        await self.call("write", data, path=path, mode=mode)

    async def edit(self, path: str, old: str, new: str, *, everywhere: bool = False) -> int:
        """Replace a text that is in the file once, or `everywhere`; how often it was."""
        found, _ = await self.call("edit", path=path, old=old, new=new, everywhere=everywhere)
        return found["num_replaced"]

    async def pack(self, paths: Sequence[str]) -> int:
        """A descriptor of a tar file with `paths`, which the caller closes."""
        return (await self._pack("pack", paths=list(paths)))[0]

    async def pack_changes(
        self, rules: Rules = Rules(), *, whole: bool = False, most: int = 1 << 40
    ) -> tuple[int, JsonObject]:
        """A descriptor of a tar file with all that differs from the start, which the caller closes;
        `whole`: and the start. Also what is `removed` since, and what the rules have `dropped`.
        SessionRefused if the files have more than `most` bytes."""
        return await self._pack("changes", rules=[*map(list, rules)], whole=whole, most=most)

    async def _pack(self, function: str, **arguments: Any) -> tuple[int, JsonObject]:
        file = os.memfd_create("files", os.MFD_CLOEXEC)
        try:
            found, _ = await self.call(function, file, **arguments, user="")
            os.lseek(file, 0, os.SEEK_SET)
        except BaseException:
            os.close(file)
            raise
        return file, found

    async def unpack(
        self, file: int, *, replaced: Sequence[str] = (), to: str = "/", whole: bool = False
    ) -> None:
        """Write the files of a tar file, in place of those below `replaced`. `whole`: what is in
        their way goes, and of `pack_changes` also what was removed."""
        await self.call("unpack", file, replaced=[*replaced], to=to, whole=whole, user="")

    async def patch(self, only: str = "/", most: int = 1 << 20) -> str:
        """The difference to the start, as Git writes it."""
        number = self._new_number()
        out = Stream(4 * most, lambda: self._kill(number))
        try:
            timer = self._loop.call_later(60.0, self._kill, number)
            request = {"op": "patch", "only": only, "most": most}
            reply = await self._ask(number, request, [out.sink], [out])
            timer.cancel()
            text = out.finish()
        finally:
            out.close()
        return text if not reply["status"] else f"{text}# the patch could not be finished\n"

    async def seal(self) -> None:
        """Take the files as the start, from which a patch is made. Ends all processes."""
        await self._operate("seal")

    async def reset(self) -> None:
        """Return to the start. Ends all processes."""
        await self._operate("reset")

    async def end_processes(self) -> None:
        await self._operate("end")

    async def snapshot(self, name: str) -> None:
        """Keep the files as they are; processes run on."""
        await self._operate("snapshot", name=name)

    async def restore(self, name: str) -> None:
        """Return to the files of a snapshot. Ends all processes."""
        await self._operate("restore", name=name)

    async def _operate(self, operation: str, **more: Any) -> None:
        await self._ask(self._new_number(), {"op": operation, **more})

    def close(self) -> None:
        """End the session with all that it has; it costs nothing to call again."""
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._end(self.why_ended or "it was closed")

    def _end(self, why: str) -> None:
        self.why_ended = why
        self._register.discard(self)
        for each in (self.ready, *self._waiting.values()):
            if not each.done():
                each.set_exception(SessionEnded(f"the session is over: {why}"))
                each.exception()  # it may be that nobody waits
        for each in self._streams:
            each.close()
        for terminal in self._terminals.values():
            terminal.screen.close()

    def _new_number(self) -> int:
        if self.why_ended:
            raise SessionEnded(f"the session is over: {self.why_ended}")
        self._next += 1
        return self._next

    async def _ask(
        self,
        number: int,
        request: dict[str, Any],
        given: Sequence[int] = (),
        streams: Sequence[Stream] = (),
    ) -> dict[str, Any]:
        raw = json.dumps({"id": number, **request}).encode()
        if len(raw) > MAX_MESSAGE:
            most = f"at most {MAX_MESSAGE} bytes in one call: write_file takes more"
            raise SessionRefused(f"the call is too long: {most}")
        future = self._loop.create_future()
        self._waiting[number], self._streams_of[number] = future, streams
        try:
            try:
                await _send(self._control, raw, given)
            except OSError:
                raise SessionEnded(f"the session is over: {self.why_ended or 'it died'}") from None
            for each in streams:
                each.close_sink()
            reply = await future
        finally:
            self._waiting.pop(number, None)
            self._streams_of.pop(number, None)
        if error := reply.get("error"):
            raise SessionRefused(error)
        return reply

    def _kill(self, number: int) -> None:
        message = {"op": "kill", "id": 0, "which": number, "signal": SIGKILL}
        with suppress(OSError):
            self._control.send(json.dumps(message).encode())

    def _receive(self) -> None:
        try:
            message, given, _, _ = socket.recv_fds(self._control, 1 << 16, 2)
        except BlockingIOError:
            return
        except OSError:
            message, given = b"", []
        if not message:
            self.close()
            return
        reply = json.loads(message)
        if given:
            reply["master"] = given[0]
        if "fatal" in reply:
            self.why_ended = reply["fatal"]
            self.close()
        elif "ready" in reply:
            if not self.ready.done():
                self.ready.set_result(None)
        elif event := reply.get("event"):
            if event == "time":
                self.why_ended = f"its time limit of {self.limits.time_s:g} s has passed"
            self._num_killings += 1
        elif "streams" in reply:  # a shell that was started before has its own
            if streams := self._streams_of.get(reply["id"]):
                for stream, source in zip(streams, given, strict=True):
                    stream.move(source)
            else:
                for each in given:
                    os.close(each)
        elif (future := self._waiting.pop(reply["id"], None)) and not future.done():
            future.set_result(reply)
        else:
            for each in given:
                os.close(each)


async def _send(control: socket.socket, raw: bytes, given: Sequence[int]) -> None:
    for _ in range(2_000):
        try:
            socket.send_fds(control, [raw], given)
            return
        except BlockingIOError:
            await asyncio.sleep(0.005)
    raise SandboxError("a session does not take requests")
