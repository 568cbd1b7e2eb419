"""See `rollout_kit.rl.adapters.nemo_rl`."""

from rollout_kit.rl.adapters.nemo_rl import RolloutCollectionHelper as RolloutCollectionHelper
