"""Signs of errors in what tools return."""

from hypothesis import given
from hypothesis import strategies as st

from rollout_kit.store.steps import Marks, reports_error

SIGNS = ["No such file", "a sign’s end", "Error:"]

PIECES = st.sampled_from([*SIGNS, "No such ", "fil", "e", "Error", ":", "’", "\n", "é", "\udc80"])


@given(st.lists(PIECES | st.text(max_size=5), max_size=20))
def test_a_text_has_a_mark_or_has_none(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert Marks(SIGNS).are_in(text) == any(sign in text for sign in SIGNS)


def test_an_error_is_seen_in_the_beginning_and_the_end_of_an_output() -> None:
    long = "a line\n" * 2_000
    assert reports_error(f"{long}cat: a.py: No such file or directory")
    assert reports_error(f"\n  ERROR: not built\n{long}")
    assert not reports_error(f"{long}No such file or directory\n{long}")
    assert not reports_error(long)
