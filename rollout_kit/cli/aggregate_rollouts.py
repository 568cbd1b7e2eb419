"""ng_aggregate_rollouts: the same as ng_merge, by its name in NeMo Gym."""

from . import entry, merge

main = entry.command("ng_aggregate_rollouts")(merge.merge_outputs)
