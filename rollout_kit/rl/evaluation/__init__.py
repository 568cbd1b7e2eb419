"""Evaluations on held-out tasks at fixed versions of the weights, while a training runs."""
