import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_kit.errors import ModelError
from rollout_kit.serving.transport.retry import RetryPolicy, delay_s, retry, retry_after_s

NOON = 1_445_412_480.0
"""Wed, 21 Oct 2015 07:28:00 GMT."""


def tried(failures, policy, *, took_s=0.0, random=lambda: 1.0, makes_first=False):
    """Run `retry` over a call that fails with each of `failures` in turn; what came of it. With
    `makes_first` the first call is made before `retry` is."""
    now, pauses, calls = [0.0], [], []

    async def sleep(pause):
        pauses.append(pause)
        now[0] += pause

    async def call():
        calls.append(now[0])
        now[0] += took_s
        if len(calls) <= len(failures):
            raise failures[len(calls) - 1]
        return "done"

    async def run():
        given = {"sleep": sleep, "clock": lambda: now[0], "random": random}
        if makes_first:
            try:
                return await call()
            except ModelError as error:
                given["first"] = error, calls[0]
        return await retry(call, policy, **given)

    try:
        return asyncio.run(run()), calls, pauses
    except ModelError as error:
        return error, calls, pauses


def busy(retry_after_s=None):
    return ModelError("busy", status=503, retry_after_s=retry_after_s)


def test_what_may_pass_is_tried_again_with_growing_pauses():
    result, calls, pauses = tried([busy()] * 3, RetryPolicy(max_tries=4, base_s=0.5))
    assert (result, len(calls), pauses) == ("done", 4, [0.5, 1.0, 2.0])


def test_the_last_error_rises_when_the_tries_are_used_up():
    errors = [busy() for _ in range(9)]
    result, calls, _ = tried(errors, RetryPolicy(max_tries=3))
    assert result is errors[2] and len(calls) == 3


def test_what_cannot_pass_is_not_tried_again():
    refusal = ModelError("no", status=400)
    assert tried([refusal], RetryPolicy()) == (refusal, [0.0], [])


def test_a_named_time_is_waited_for_and_the_crowd_is_spread_after_it():
    _, _, pauses = tried([busy(7.0)], RetryPolicy(base_s=0.5), random=lambda: 0.5)
    assert pauses == [7.25]


def test_no_pause_is_begun_that_the_deadline_would_cut():
    result, calls, pauses = tried([busy(60.0)], RetryPolicy(deadline_s=30))
    assert isinstance(result, ModelError) and (len(calls), pauses) == (1, [])


def test_the_time_that_tries_take_counts_towards_the_deadline():
    result, calls, _ = tried([busy()] * 9, RetryPolicy(max_tries=9, deadline_s=25), took_s=10)
    assert isinstance(result, ModelError) and len(calls) == 3


@given(
    number=st.integers(0, 5),
    max_tries=st.integers(1, 4),
    took_s=st.sampled_from([0.0, 10.0]),
    status=st.sampled_from([400, 429, 503]),
)
def test_a_first_try_of_the_caller_counts_like_any_other(number, max_tries, took_s, status):
    policy = RetryPolicy(max_tries=max_tries, deadline_s=25)
    whole, early = (
        tried([ModelError("no", status=status)] * number, policy, took_s=took_s, makes_first=first)
        for first in (False, True)
    )
    assert (str(whole[0]), *whole[1:]) == (str(early[0]), *early[1:])


def test_other_exceptions_rise_untouched():
    with pytest.raises(KeyError):
        tried([KeyError("bug")], RetryPolicy())


@given(tries=st.integers(1, 5_000), draw=st.floats(0, 1), named=st.none() | st.floats(0, 1e6))
def test_a_pause_is_never_shorter_than_named_nor_longer_than_the_cap_beyond_it(tries, draw, named):
    pause = delay_s(RetryPolicy(base_s=0.5, cap_s=30), tries, named, lambda: draw)
    assert (named or 0) <= pause <= (named or 0) + 30


@pytest.mark.parametrize(
    "header, seconds",
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("Wed, 21 Oct 2015 07:28:10 GMT", 10.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:10 -0000", 10.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(header, seconds):
    assert retry_after_s(header, NOON) == seconds
