"""What an agent did inside a rollout: its steps, and what is conspicuous about them."""
