"""Where servers run: placement in this process or in others, supervision, sockets, output, and the
head server that tells commands where everything is.

Nothing here knows about tasks or rollouts.
"""
