"""Where groups of rollouts wait for a trainer: one interface over memory, Redis Streams, a Ray
actor and HTTP.

`shelf` decides everything and does no input or output; the memory buffer keeps one, and the Ray
actor and the HTTP server a memory buffer. `redis.lua` decides the same inside Redis.
"""
