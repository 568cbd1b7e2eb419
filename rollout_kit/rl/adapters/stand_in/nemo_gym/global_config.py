"""See `rollout_kit.rl.adapters.nemo_rl`."""

from rollout_kit.rl.adapters.nemo_rl import get_global_config_dict as get_global_config_dict
