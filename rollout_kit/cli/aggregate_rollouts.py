"""ng_aggregate_rollouts: the same as ng_merge, by its name in NeMo Gym."""

from . import merge


def main(argv: list[str] | None = None) -> None:
    merge.main(argv, "ng_aggregate_rollouts")
