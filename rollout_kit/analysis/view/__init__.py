"""Looking at rollouts in a browser: the pages, and the server behind them.

It reads rollouts through `store/` only, and computes nothing that a command does not.
"""
