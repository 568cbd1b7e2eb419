"""How many rollouts run at once, how long they take and what they cost: limiters, measurement,
budgets, and when to give up.

State machines that take the clock as an argument. They decide; the run acts.
"""
