"""A program of others in a session: an agent that brings its own loop, and finds its model at one
address."""

from pydantic import BaseModel, ConfigDict, Field

from rollout_kit import JsonObject, TaskError
from rollout_kit.serving.sandbox.session.bounds import SessionEnded, SessionRefused
from rollout_kit.serving.sandbox.session.client import ShellSession
from rollout_kit.serving.sandbox.session.doorway import OUTSIDE, leading_to

from .rows import Files


class ProgramRequest(BaseModel):
    """`host` and `port` are all of the network that the program reaches. Texts of `environment` and
    `files` name it as OUTSIDE, which is replaced by its address in the session."""

    model_config = ConfigDict(extra="forbid")

    command: str = Field(min_length=1)
    host: str
    port: int
    environment: dict[str, str] = {}
    files: Files = {}
    time_limit_s: float = Field(gt=0)
    output_bytes: int = Field(ge=0)


async def run_program(session: ShellSession, asked: ProgramRequest) -> JsonObject:
    """Lay out the files, run the command to its end, and end all that it has started."""
    async with leading_to(session, asked.host, asked.port) as port:
        url = f"http://127.0.0.1:{port}"
        try:
            for path, text in asked.files.items():
                await session.write_bytes(path, text.replace(OUTSIDE, url).encode())
            done = await session.exec(
                asked.command,
                timeout_s=asked.time_limit_s,
                output_bytes=asked.output_bytes,
                environment={
                    name: text.replace(OUTSIDE, url) for name, text in asked.environment.items()
                },
            )
            await session.end_processes()
        except SessionRefused as error:
            raise TaskError(f"the program cannot be started: {error}", status=400) from None
        except SessionEnded as error:
            return {"status": None, "ended_by": str(error), "stdout": "", "stderr": ""}
    return {
        "status": done.status,
        "ended_by": done.ended_by,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "duration_s": round(done.duration_s, 3),
    }
