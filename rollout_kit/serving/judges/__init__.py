"""Judges that grade an answer by a rubric: what they are asked, how their replies are read, and how
several of them vote."""
