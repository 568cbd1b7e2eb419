"""An MCP server over standard input and output, for examples: a notebook for each process."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")
pages: list[str] = []


@server.tool()
def write(text: str) -> str:
    """Write a page of the notebook. Returns its number."""
    pages.append(text)
    return str(len(pages))


@server.tool()
def read() -> str:
    """Read all pages of the notebook."""
    return "\n".join(pages) or "(empty)"


if __name__ == "__main__":
    server.run()
