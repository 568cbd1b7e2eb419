"""From the command line, YAML files and `env.yaml` to one validated, typed configuration.

The keys of each command are in `config.keys`. Nothing here starts a server or prints.
"""
