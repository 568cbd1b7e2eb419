"""The tools of the shell, and its keys."""

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from rollout_kit import JsonObject, ResourcesServer, ResourcesServerConfig, ToolError, tool
from rollout_kit.serving.sandbox.container import ContainerConfig
from rollout_kit.serving.sandbox.limits import SandboxError
from rollout_kit.serving.sandbox.session.bounds import SessionRefused
from rollout_kit.serving.sandbox.session.client import ShellSession
from rollout_kit.serving.sandbox.session.terminal import Terminal
from rollout_kit.serving.service import OPERATIONAL, get


class ShellConfig(ContainerConfig, ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")

    root: Path | None = Field(
        None, description="A folder with a root file system. Default: the programs of this machine."
    )
    packages: list[str] = Field(
        ["pytest"], description="Installed Python packages that sessions can import."
    )
    folders: dict[str, str] = Field(
        {},
        description="Folders of this machine that sessions can read, as a mapping of paths in the"
        " session to folders.",
    )
    session_time_s: float = Field(3600.0, gt=0, description="Maximum duration of a session.")
    memory_mb: int = Field(
        2048, ge=64, description="Memory limit for all processes of a session together."
    )
    disk_mb: int = Field(
        1024,
        ge=16,
        description="Maximum size of the files that a session may write. They are kept in memory.",
    )
    num_processes: int = Field(
        256, ge=8, description="Maximum number of processes and threads of a session."
    )
    num_ready: int = Field(
        2,
        ge=0,
        json_schema_extra=OPERATIONAL,
        description="Number of sessions that are prepared in advance, each with a process of 5 MB.",
    )
    command_timeout_s: float = Field(60.0, gt=0, description="Default time limit of a command.")
    max_command_timeout_s: float = Field(
        600.0, gt=0, description="Longest time limit that a call may set."
    )
    output_bytes: int = Field(
        16_000,
        ge=200,
        description="If an output is longer, the policy sees only its beginning and its end.",
    )
    patch_bytes: int = Field(
        200_000, ge=0, description="Maximum size of the patch in the output. 0: no patch."
    )
    max_memory_mb: int = Field(
        8192, ge=64, description="The most memory_mb that a task in Harbor's format may ask for."
    )
    max_disk_mb: int = Field(
        4096, ge=16, description="The most storage_mb that a task in Harbor's format may ask for."
    )
    task_folders: list[str] = Field(
        [], description="Folders in which rows may name tasks in Harbor's format."
    )
    roots: dict[str, str] = Field(
        {}, description="Folders with root file systems, by the name of an image."
    )
    allowed_hosts: list[str] = Field(
        [],
        description="Hosts that sessions may reach if their task allows them too. *.name and * are"
        " possible.",
    )
    keep_programs: bool = Field(
        False,
        description="Run the tests of a task in Harbor's format with the programs that the agent"
        " has replaced, as Harbor does.",
    )
    functions_fpath: Path | None = Field(
        None, description="Your Python file with functions that verify. Rows name a function."
    )


class Room:
    """What a rollout has here."""

    def __init__(self, session: ShellSession) -> None:
        self.kept = session
        self.terminals: dict[str, Terminal] = {}
        self.why_late = ""

    @property
    def session(self) -> ShellSession:
        """The session, for what the policy asks."""
        if self.why_late:
            raise ToolError(self.why_late)
        return self.kept

    async def finish_step(self) -> str:
        raise ToolError("this task has no steps: answer when it is done")

    async def close(self) -> None:
        self.kept.close()

    def terminal(self, name: str) -> Terminal:
        if name not in self.terminals:
            known = ", ".join(self.terminals) or "none"
            raise ToolError(f"there is no terminal '{name}'; open: {known}")
        return self.terminals[name]


class ShellTools(ResourcesServer):
    """What the policy can do in its session."""

    config: ShellConfig

    @tool
    async def exec(self, command: str, timeout_s: float | None = None) -> str:
        """Run a command in bash, in the working folder. Each call starts a new shell; files stay.
        At the time limit it is killed. To keep a program running, open a terminal."""
        config = self.config
        asked = config.command_timeout_s if timeout_s is None else timeout_s
        if not 0 < asked <= config.max_command_timeout_s:
            raise ToolError(f"timeout_s must be at most {config.max_command_timeout_s:g}")
        with _told():
            done = await self.state.session.exec(
                command, timeout_s=asked, output_bytes=config.output_bytes
            )
        parts = [done.stdout.rstrip("\n")] if done.stdout else []
        parts += [f"[stderr]\n{done.stderr.rstrip()}"] if done.stderr else []
        why = {
            "time": f"[killed at its time limit of {asked:g} s]",
            "output": "[killed, because it printed too much]",
            "memory": f"[killed, because the session held more than {config.memory_mb} MB]",
        }.get(done.ended_by, f"[exit status {done.status}]")
        return "\n".join([*parts, why])

    @tool
    async def read_file(self, path: str, first_line: int = 1, num_lines: int = 2000) -> str:
        """Read lines of a text file. A path may be relative to the working folder."""
        if first_line < 1 or num_lines < 1:
            raise ToolError("first_line and num_lines must be at least 1")
        with _told():
            raw = await self.state.session.read_bytes(path)
        lines = raw.decode(errors="replace").splitlines(keepends=True)
        text = "".join(lines[first_line - 1 : first_line - 1 + num_lines])
        left = len(lines) - (first_line - 1 + num_lines)
        return f"{text}[{left} more lines]" if left > 0 else text

    @tool
    async def write_file(self, path: str, content: str) -> str:
        """Write a file, with the folders above it. A file that is there is replaced."""
        with _told():
            data = content.encode(errors="surrogatepass")
            await self.state.session.write_bytes(path, data)
        return f"wrote {len(data)} bytes to {path}"

    @tool
    async def edit(self, path: str, old: str, new: str, everywhere: bool = False) -> str:
        """Replace the text `old`, which must be in the file exactly once, or `everywhere`."""
        with _told():
            number = await self.state.session.edit(path, old, new, everywhere=everywhere)
        return f"replaced {number} time{'s' if number > 1 else ''} in {path}"

    @tool
    async def open_terminal(self, name: str, command: str = "bash") -> str:
        """Start a program in a terminal, where it runs on: a server, a debugger, a shell."""
        if name in self.state.terminals:
            raise ToolError(f"there is a terminal '{name}' already")
        with _told():
            most = self.config.output_bytes
            found = await self.state.session.open_terminal(command, output_bytes=most)
        self.state.terminals[name] = found
        return f"opened terminal '{name}'"

    @tool
    async def send_keys(self, name: str, text: str, enter: bool = True) -> str:
        """Type into a terminal. Control characters work, such as \\u0003 for Ctrl-C."""
        with _told():
            self.state.terminal(name).send(text + ("\n" if enter else ""))
        return "sent"

    @tool
    async def read_terminal(self, name: str, wait_for: str = "", timeout_s: float = 10.0) -> str:
        """Read what is new in a terminal. Waits until the text `wait_for` is in it, or without one
        for any output, at most `timeout_s`."""
        if not 0 <= timeout_s <= self.config.max_command_timeout_s:
            raise ToolError(f"timeout_s must be at most {self.config.max_command_timeout_s:g}")
        terminal = self.state.terminal(name)
        text, found = await terminal.screen.read(wait_for, timeout_s)
        status = terminal.exit_status
        notes = [] if found or not wait_for else [f"[{wait_for!r} did not appear]"]
        notes += [] if status is None else [f"[the program has ended with status {status}]"]
        return "\n".join([text.rstrip("\n"), *notes])

    @tool
    async def close_terminal(self, name: str) -> str:
        """Kill the program of a terminal."""
        self.state.terminal(name).stop()
        del self.state.terminals[name]
        return f"closed terminal '{name}'"

    @tool
    async def snapshot(self, name: str) -> str:
        """Keep all files as they are now, to return to them with restore."""
        with _told():
            await self.state.session.snapshot(name)
        return f"kept as '{name}'"

    @tool
    async def restore(self, name: str = "") -> str:
        """Return to the files of a snapshot; without a name, to the start. Ends all programs."""
        with _told():
            session = self.state.session
            await (session.restore(name) if name else session.reset())
        return f"restored '{name}'" if name else "restored the start"

    @tool
    async def finish_step(self) -> str:
        """Finish this step of the task. Returns what to do in the next step. All programs end."""
        with _told():
            return await self.state.finish_step()

    @get("/tools")
    async def list_tools(self) -> list[JsonObject]:
        """The tools of this server but `finish_step`, which rows with steps name."""
        offered = await super().list_tools()
        return [each for each in offered if each["name"] != "finish_step"]

    @tool
    async def diff(self, path: str = "/") -> str:
        """What you have changed since the start, as a patch."""
        with _told():
            return await self.state.session.patch(path, self.config.output_bytes) or "no change"


class _told:
    """What a session refuses is text for the policy; its end is not."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, SessionRefused):
            raise ToolError(str(error)) from None
        if isinstance(error, SandboxError):
            raise ToolError(str(error), retryable=False) from error
