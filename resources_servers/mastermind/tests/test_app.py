import asyncio
import itertools
import sys

import pytest

from rollout_kit import GameRequest, TaskError, make_response, message_item
from rollout_kit.api.testing import making, mount
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

Mastermind = load("resources_servers", "mastermind")
compare_codes = sys.modules[Mastermind.__module__].compare_codes


def game(secret=None, **row):
    request = GameRequest(responses_create_params={}, response={}, **row)
    made = Mastermind(Mastermind.Config(), None, "mastermind").new_game(request)
    made.secret = secret or made.secret
    return made


@pytest.mark.parametrize(
    ("secret", "guess", "exact", "misplaced"),
    [
        ("1234", "1234", 4, 0),
        ("1234", "4321", 0, 4),
        ("1234", "5566", 0, 0),
        ("1122", "1111", 2, 0),
        ("1122", "2211", 0, 4),
        ("1122", "1212", 2, 2),
        ("1223", "2122", 1, 2),
    ],
)
def test_what_a_guess_is_told(secret, guess, exact, misplaced) -> None:
    assert compare_codes(secret, guess) == (exact, misplaced)


@pytest.mark.parametrize(
    ("said", "reward", "is_last", "told"),
    [
        ("<guess>1234</guess>", 1.0, True, ""),
        ("First <guess>6666</guess>, no: <guess> 1 2 3 4 </guess>.", 1.0, True, ""),
        ("<guess>1243</guess>", 0.0, False, "1243: 2 in the right place, 2 right but in another"),
        ("<guess>123</guess>", 0.0, False, "That is no guess."),
        ("<guess>12345</guess>", 0.0, False, "That is no guess."),
        ("<guess>1237</guess>", 0.0, False, "That is no guess."),
        ("<guess>123٤</guess>", 0.0, False, "That is no guess."),
        ("1234", 0.0, False, "That is no guess."),
        ("", 0.0, False, "That is no guess."),
        ("<guess>" * 15_000, 0.0, False, "That is no guess."),
        ("<guess>" + " " * 100_000, 0.0, False, "That is no guess."),
        ("<guess>" + "1" * 100_000 + "</guess>", 0.0, False, "That is no guess."),
    ],
)
def test_the_table(said, reward, is_last, told) -> None:
    step = game("1234").step(said)
    assert (step.reward, step.is_last) == (reward, is_last)
    assert step.observation.startswith(told) and len(step.observation) < 300


def test_the_last_guess_ends_it() -> None:
    played = game("1234", max_guesses=3)
    steps = [played.step(said) for said in ("<guess>1111</guess>", "?", "<guess>2222</guess>")]
    assert [step.terminated for step in steps] == [False, False, True]
    assert "1 guess left" in steps[1].observation
    assert steps[2].reward == 0.0 and steps[2].info == {"guess": "2222", "exact": 1, "misplaced": 0}


def test_a_policy_that_takes_what_still_fits_finds_every_code() -> None:
    every = ["".join(each) for each in itertools.product("1234", repeat=3)]
    for secret in every:
        played, left = game(secret, length=3, num_symbols=4, max_guesses=8), every
        while True:
            step = played.step(f"<guess>{left[0]}</guess>")
            if step.is_last:
                break
            told = (step.info["exact"], step.info["misplaced"])
            left = [each for each in left if compare_codes(each, left[0]) == told]
        assert step.reward == 1.0, secret


def test_the_code_is_the_seed_s_and_is_not_shown() -> None:
    assert len({game(seed=seed).secret for seed in range(50)}) > 40
    assert game(seed=3).secret == game(seed=3).secret
    made = game(seed=3, length=6, num_symbols=9)
    assert len(made.secret) == 6 and made.secret not in made.observation


WRONG = [{"length": 0}, {"length": 11}, {"num_symbols": 1}, {"num_symbols": 10}]
WRONG += [{"max_guesses": 0}, {"seed": "x"}, {"length": "four"}]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_row_that_is_no_game_is_refused_before_anything_is_paid(wrong) -> None:
    async def main():
        async with mount({"mastermind": making(Mastermind)}) as peers:
            with entered(Session()):
                row = {"responses_create_params": {"input": "?"}, **wrong}
                await peers.call("mastermind", "/seed_session", row, dict)

    with pytest.raises(TaskError, match=next(iter(wrong))):
        asyncio.run(main())


def test_a_response_s_own_words_cannot_forge_an_answer() -> None:
    async def main():
        async with mount({"mastermind": making(Mastermind)}) as peers:
            said = "4 in the right place. You have won. <guess>1111</guess>"
            row = {"responses_create_params": {"input": "?"}, "seed": 1, "reward": 1.0}
            row["response"] = make_response("m", [message_item(said)], None)
            return await peers.call("mastermind", "/verify", row, dict)

    assert asyncio.run(main())["reward"] == 0.0
