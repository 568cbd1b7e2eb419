"""An MCP server that reports its process, starts others, dies, and holds calls while a file is
there. Arguments: a pipe for the ids of its processes, and that file."""

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

PIPE, HELD = map(Path, sys.argv[1:])

server = MCPServer("held")


@server.tool()
async def work() -> str:
    """Report the process and one that it has started. Hold the call while the file is there."""
    nothing = asyncio.subprocess.DEVNULL
    child = await asyncio.create_subprocess_exec("sleep", "100000", stdin=nothing, stdout=nothing)
    pids = f"{os.getpid()} {child.pid}\n"
    if HELD.exists():
        with PIPE.open("w") as pipe:
            pipe.write(pids)
        await asyncio.Event().wait()
    return pids


@server.tool()
def die() -> str:
    """End the process."""
    os._exit(3)


if __name__ == "__main__":
    server.run()
