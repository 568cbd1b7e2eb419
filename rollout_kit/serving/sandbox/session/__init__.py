"""Sessions in the sandbox: a machine's files and processes that live as long as one rollout.

`client` has what servers use. `warden`, `inside`, `layers`, `files`, `patch` and `ground` run under
a bare interpreter with the standard library alone, so this package imports nothing here.
"""
