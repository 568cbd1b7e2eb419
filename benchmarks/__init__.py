"""What rollout_kit costs and carries: `python -m benchmarks`, beside a bare client loop."""
