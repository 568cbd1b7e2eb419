"""Stands in for NeMo Gym where NeMo-RL imports it; see `rollout_kit.rl.adapters.nemo_rl`."""
