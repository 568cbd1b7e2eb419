"""Predicts a training run: recorded rollouts are played again by simulated model servers, under a
virtual clock."""
