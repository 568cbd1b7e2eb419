"""The keys of each command: name, type, default and one sentence of description.

How values are found, merged and checked belongs in `config` itself.
"""
