"""Evaluations on held-out tasks while a training runs."""
