"""How servers reach each other: the seam (`Peers`), the HTTP client, a server as an HTTP or MCP
application, who may call it, and the recording and replay of calls.

What a server does with a request belongs in `serving`; starting its process belongs in `launch`.
"""
