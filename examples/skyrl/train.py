"""SkyRL's trainer, with rollouts through our servers.

python examples/skyrl/train.py $(cat examples/skyrl/settings.txt)
"""

import sys
from typing import Any

import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.utils import initialize_ray

from rollout_kit.rl.adapters.skyrl import RolloutGenerator

CONFIGS = [
    "responses_api_models/trainer_model/configs/trainer_model.yaml",
    "resources_servers/math_with_verify/configs/math_with_verify.yaml",
    "resources_servers/calculator/configs/calculator.yaml",
]


class Experiment(BasePPOExp):
    def get_generator(
        self, cfg: SkyRLTrainConfig, tokenizer: Any, inference_engine_client: Any
    ) -> RolloutGenerator:
        return RolloutGenerator(
            inference_engine_client, tokenizer, CONFIGS, output_dir="results/skyrl/rollouts"
        )


@ray.remote(num_cpus=1)
def train(cfg: SkyRLTrainConfig) -> None:
    Experiment(cfg).run()


def main() -> None:
    cfg = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])
    validate_cfg(cfg)
    initialize_ray(cfg)
    ray.get(train.remote(cfg))


if __name__ == "__main__":
    main()
