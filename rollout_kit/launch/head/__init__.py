"""The head server of an `ng_run`, and its clients.

Here: what other commands may ask a run, and the figures that Prometheus reads. Clients import no
HTTP server. Not how the servers of the run are started.
"""
