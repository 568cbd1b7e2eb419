"""Groups of rollouts during a run: which are settled, their verification, and what came of it."""
