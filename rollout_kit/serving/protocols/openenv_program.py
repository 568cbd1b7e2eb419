"""An OpenEnv environment's folder as a running server, in an interpreter that has its packages.

The socket is ours and stays open, so a server that died is started again at the same URL.
"""

import asyncio
from pathlib import Path
from typing import Any

from ...errors import ConfigError, PeerError
from ..sockets import bound_socket, url_of
from ..transport.http import HttpClient

MANIFEST = "openenv.yaml"

LOOK_S = 0.1
"""Pause between two looks whether the server is ready."""


def read_app(folder: Path) -> str:
    """The app that the manifest in a folder names, as `module:attribute`; ConfigError if there is
    none, or it needs a container."""
    import yaml

    path = folder / MANIFEST
    try:
        manifest = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    app = manifest.get("app") if isinstance(manifest, dict) else None
    if not isinstance(app, str) or ":" not in app:
        raise ConfigError(
            f"{path}: has no app, as server.app:app: start this environment yourself, for example"
            " in its container, and set url"
        )
    return app


class OpenEnvProgram:
    """The server of one folder, under uvicorn."""

    def __init__(self, name: str, folder: Path, interpreter: str, ready_timeout_s: float) -> None:
        self._name, self._folder, self._ready_s = name, folder, ready_timeout_s
        self._interpreter = str(Path(interpreter).expanduser())
        self._app = read_app(folder)
        self._socket = bound_socket("127.0.0.1", 0)
        self.url = url_of(self._socket)
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()

    async def ensure_running(self) -> None:
        """Start the server unless it runs. PeerError, with how it ended, if it does not start."""
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return
            descriptor = self._socket.fileno()
            words = [self._interpreter, "-m", "uvicorn", self._app, "--fd", str(descriptor)]
            options: dict[str, Any] = {"stdin": asyncio.subprocess.DEVNULL, "cwd": self._folder}
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *words, "--log-level", "warning", pass_fds=[descriptor], **options
                )
            except OSError as error:
                raise ConfigError(
                    f"{self._name}: {self._interpreter} cannot be started: {error.strerror}"
                ) from None
            await self._wait_ready(self._process)

    async def close(self) -> None:
        """End the server."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._socket.close()

    async def _wait_ready(self, process: asyncio.subprocess.Process) -> None:
        ended = asyncio.ensure_future(process.wait())
        answered = asyncio.ensure_future(self._answer())
        try:
            await asyncio.wait(
                {ended, answered}, timeout=self._ready_s, return_when=asyncio.FIRST_COMPLETED
            )
            if answered.done():
                return
            how = f"ended with status {process.returncode}" if ended.done() else "is not ready"
            if not ended.done():
                process.kill()
            raise PeerError(
                f"the OpenEnv server of {self._folder} {how}: its output says why",
                server=self._name,
            )
        finally:
            answered.cancel()
            ended.cancel()

    async def _answer(self) -> None:
        client = HttpClient()
        try:
            while True:
                try:
                    reply = await client.get(f"{self.url}/health", timeout_s=self._ready_s)
                except PeerError:
                    reply = None
                if reply is not None and reply.status == 200:
                    return
                await asyncio.sleep(LOOK_S)
        finally:
            await client.close()
