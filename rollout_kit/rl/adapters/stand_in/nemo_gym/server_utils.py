"""See `rollout_kit.rl.adapters.nemo_rl`."""

from rollout_kit.rl.adapters.nemo_rl import HEAD_SERVER_KEY_NAME as HEAD_SERVER_KEY_NAME
from rollout_kit.rl.adapters.nemo_rl import BaseServerConfig as BaseServerConfig
