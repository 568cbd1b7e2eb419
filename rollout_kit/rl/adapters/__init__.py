"""How trainers that own the loop take rollouts from here: one module for each, which imports the
trainer's package only where it is used."""
