"""How a trainer's weights reach model servers: folders `step_N/` with a marker, the trainer's side
that writes them, and the follower that keeps a server at the newest one."""
