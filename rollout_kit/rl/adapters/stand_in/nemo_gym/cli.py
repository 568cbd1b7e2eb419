"""See `rollout_kit.rl.adapters.nemo_rl`."""

from rollout_kit.rl.adapters.nemo_rl import (
    GlobalConfigDictParserConfig as GlobalConfigDictParserConfig,
)
from rollout_kit.rl.adapters.nemo_rl import RunHelper as RunHelper
