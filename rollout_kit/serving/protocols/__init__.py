"""Protocols of others: the client for tools of MCP servers, and both sides of OpenEnv.

The server for MCP clients stands in `transport`, because it answers on a server's own socket.
"""
