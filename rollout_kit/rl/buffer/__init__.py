"""Where groups of rollouts wait for a trainer: one interface over memory, Redis Streams, a Ray
actor and HTTP.

`shelf` decides everything and does no input or output; the memory buffer keeps one, and the Ray
actor and the HTTP server a memory buffer. Redis holds a log of operations, which every client
applies to a shelf of its own.
"""
