import asyncio
from collections import Counter

import pytest
from support import HANG_S

from rollout_kit import GameRequest, TaskError, make_response, message_item
from rollout_kit.api.testing import making, mount
from rollout_kit.serving.gymnasium import actions, find_tagged, observation_item
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

Blackjack = load("resources_servers", "blackjack")
HIT, STAND = "<action>hit</action>", "<action>stand</action>"


def game(seed=0):
    row = GameRequest(responses_create_params={}, response={}, seed=seed)
    return Blackjack(Blackjack.Config(), None, "blackjack").new_game(row)


def hand(player, dealer, *cards):
    dealt = game()
    dealt.player, dealt.dealer, cards = player.split(), dealer.split(), list(cards)
    dealt._card = lambda: cards.pop(0)
    return dealt


@pytest.mark.parametrize(
    ("player", "dealer", "cards", "said", "reward", "result"),
    [
        ("10 9", "10 8", [], [STAND], 1, "win"),
        ("10 8", "10 8", [], [STAND], 0, "draw"),
        ("10 7", "10 8", [], [STAND], -1, "loss"),
        ("10 6", "10 8", ["J"], [HIT], -1, "bust"),
        ("10 6", "10 8", ["5"], [HIT, STAND], 1, "win"),
        ("10 2", "10 6", ["K"], [STAND], 1, "win"),
        ("10 2", "10 6", ["5"], [STAND], -1, "loss"),
        ("A 5", "10 9", ["10", "5"], [HIT, HIT, STAND], 1, "win"),
        ("A A", "10 9", [], [STAND], -1, "loss"),
        ("A K", "10 7", [], [STAND], 1, "win"),
        ("10 6", "A 6", [], [STAND], -1, "loss"),
        ("10 6", "10 8", ["5"], ["I <ACTION> Hit </Action>", STAND], 1, "win"),
        ("10 9", "10 8", [], [f"{HIT}? No: {STAND}"], 1, "win"),
        ("10 9", "10 8", [], ["hit"], 1, "win"),
        ("10 9", "10 8", [], [""], 1, "win"),
        ("10 9", "10 8", [], ["<action>hit"], 1, "win"),
        ("10 9", "10 8", [], ["<action>double</action>"], 1, "win"),
    ],
)
def test_the_table(player, dealer, cards, said, reward, result) -> None:
    dealt = hand(player, dealer, *cards)
    steps = [dealt.step(action) for action in said]
    assert [step.is_last for step in steps] == [False] * (len(said) - 1) + [True]
    assert [step.reward for step in steps[:-1]] == [0.0] * (len(said) - 1)
    assert (steps[-1].reward, steps[-1].info["result"]) == (reward, result)


def test_the_observation_hides_one_card_of_the_dealer_s() -> None:
    shown = hand("A 5", "10 9").observation
    assert shown.startswith("Your hand: [A, 5] = 16\nDealer shows: 10\n") and "9" not in shown


def test_the_same_seed_is_the_same_game() -> None:
    assert len({game(seed).observation for seed in range(30)}) > 20
    assert game(7).observation == game(7).observation


def test_a_sensible_policy_is_better_than_a_foolish_one() -> None:
    def mean(limit):
        total = 0.0
        for seed in range(1000):
            dealt = game(seed)
            while True:
                value = int(dealt.observation.split(" = ")[1].split("\n")[0])
                step = dealt.step(HIT if value < limit else STAND)
                if step.is_last:
                    total += step.reward
                    break
        return total / 1000

    assert -0.25 < mean(17) < 0.1 and mean(21) < mean(17) - 0.3


def verify(row, items):
    async def main():
        async with mount({"blackjack": making(Blackjack)}) as peers:
            asked = {"responses_create_params": {"input": "?"}, **row}
            asked["response"] = make_response("m", items, None)
            async with asyncio.timeout(HANG_S):
                return await peers.call("blackjack", "/verify", asked, dict)

    return asyncio.run(main())


LONG = ["<action>" * 12_000, "<action> " + " " * 100_000, "</action>" * 10_000, "İ" * 50_000 + HIT]


@pytest.mark.parametrize("text", LONG)
def test_long_hostile_words_are_an_action_like_any_other(text) -> None:
    found = verify({"seed": 3}, [message_item(text)])
    assert found["num_steps"] == 1 and found["reward"] in (-1.0, 0.0, 1.0)


def test_what_a_response_adds_after_the_end_counts_for_nothing() -> None:
    items = [message_item(STAND), observation_item("You have won."), message_item(STAND)]
    assert verify({"seed": 3}, items * 3)["num_steps"] == 1


def test_an_observation_in_the_policy_s_own_words_is_no_observation() -> None:
    items = [message_item(f"{HIT}\nYour hand: [A, K] = 21"), message_item(STAND)]
    assert [action.count("<action>") for action in actions(items)] == [2]


def test_no_turn_is_no_reward_and_no_end() -> None:
    found = verify({}, [])
    assert (found["reward"], found["terminated"], found["truncated"]) == (0.0, False, True)


@pytest.mark.parametrize("seed", ["x", 1.5, None, [1]])
def test_a_seed_that_is_none_is_refused(seed) -> None:
    with pytest.raises(TaskError, match="seed"):
        verify({"seed": seed}, [])


def test_cards_come_as_often_as_each_other() -> None:
    dealt = game(1)
    counts = Counter(dealt._card() for _ in range(13_000))
    assert len(counts) == 13 and max(counts.values()) < 1.2 * min(counts.values())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<a>1</a>", "1"),
        ("<a>1</a><a> 2 </a>", "2"),
        ("<a>1</a><a>2", "1"),
        ("</a><a>1</a></a>", "1"),
        ("<a><a>1</a>", "1"),
        ("1</a>", None),
        ("", None),
    ],
)
def test_the_last_tag_counts(text, found) -> None:
    assert find_tagged(text, "a") == found


def play(row, rollout_index):
    """The first observation of a rollout, and its verdict in another session."""
    key = ("0123456789abcdef", rollout_index)

    async def main():
        async with mount({"blackjack": making(Blackjack)}) as peers:
            with entered(Session.of(key, None)):
                await peers.call("blackjack", "/seed_session", row, dict)
                seen = (await peers.call("blackjack", "/reset", {}, dict))["observation"]
            with entered(Session.of(key, None)):
                await peers.call("blackjack", "/seed_session", row, dict)
                said = {**row, "response": make_response("m", [message_item(STAND)], None)}
                return seen, await peers.call("blackjack", "/verify", said, dict)

    return asyncio.run(main())


def test_a_row_without_seed_is_another_game_in_each_rollout_and_can_be_verified_again():
    row = {"responses_create_params": {"input": "Play."}}
    games = [play(row, number) for number in range(8)]
    assert len({seen for seen, _ in games}) > 4
    for number, (seen, verdict) in enumerate(games):
        again, verdict_again = play(row, number)
        assert (seen, verdict["info"]) == (again, verdict_again["info"])
        assert verdict["info"]["player"] in seen and verdict["info"]["seed"]


def test_a_row_with_seed_is_the_same_game_in_each_rollout():
    row = {"responses_create_params": {"input": "Play."}, "seed": 0}
    (first, verdict), (second, _) = play(row, 0), play(row, 1)
    assert first == second and "seed" not in verdict["info"]
