"""Ways in which a verifier can be gamed: in its code, in its rows, and wrong answers that score.

`text_flow` and `code_reading` read the code, `row_leaks` reads the rows, `tricks` builds the
answers, `obedient_judge` is a judge that does what an answer says, `verdict` judges the rewards,
and `search` does all of it.
"""
