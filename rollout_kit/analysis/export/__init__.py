"""What is made of stored rollouts: filters, trainers' formats, preference pairs.

It reads rollouts through `store` and `api` and writes new files. It neither calls servers nor
changes an output.
"""
