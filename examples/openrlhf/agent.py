"""The agent of OpenRLHF that asks our servers for rollouts: `--train.agent_func_path` names it."""

from rollout_kit.rl.adapters.openrlhf import RolloutAgentExecutor


class AgentExecutor(RolloutAgentExecutor):
    config_paths = (
        "responses_api_models/trainer_model/configs/trainer_model.yaml",
        "resources_servers/math_with_verify/configs/math_with_verify.yaml",
        "resources_servers/calculator/configs/calculator.yaml",
    )
    output_dir = "results/openrlhf/rollouts"
