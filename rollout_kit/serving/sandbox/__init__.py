"""Run Python code that a model wrote, isolated from the machine; the entry is `pool.Sandbox`.

Each run is a fork of a warm interpreter in namespaces of its own. This package imports nothing
here, because `zygote` runs under a bare interpreter with the standard library alone.
"""
