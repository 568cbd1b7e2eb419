"""Defines the keys of the commands that read rollouts."""

from pydantic import Field

from .command import Command


class ReadingCommand(Command):
    """Keys of the commands that read files of rollouts. Words without a `=` are files."""

    inputs: list[str] = Field([], description="Files of rollouts; also as plain words.")


class CompareConfig(ReadingCommand):
    """ng_compare: compare files of rollouts task by task."""

    pass_threshold: float = Field(1.0, description="Lowest reward that counts as a success.")
