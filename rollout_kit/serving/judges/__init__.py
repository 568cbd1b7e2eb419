"""Judges that grade an answer by a rubric, and reward models that score it: what they are asked,
how their replies are read and kept, and how several of them vote."""
