"""The compact tables hold what a dict and a set would."""

import random

from hypothesis import given
from hypothesis import strategies as st

from rollout_kit.store.compact import Keys, NumberTable, TaskTable
from rollout_kit.types import Key

ids = st.one_of(
    st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}"),
    st.sampled_from(["0" * 16, "f" * 16, "a task of another tool", "0123456789abcdeg"]),
)


def test_a_table_holds_what_a_dict_would_through_every_growth() -> None:
    numbers = random.Random(0)
    table, like = NumberTable(), {}
    keys = [0, 2**64 - 1, *(numbers.getrandbits(64) for _ in range(60_000))]
    keys += [256 * each for each in range(2_000)]  # all in one shard
    for value, key in enumerate([*keys, *keys]):
        assert table.setdefault(key, value) == like.setdefault(key, value)
    assert dict(table.items()) == like


@given(st.lists(st.tuples(ids, st.integers(0, 2**32 - 2))))
def test_a_table_of_tasks_takes_any_id(entries: list[tuple[str, int]]) -> None:
    table, like = TaskTable(), {}
    for task_id, value in entries:
        assert table.setdefault(task_id, value) == like.setdefault(task_id, value)
    assert dict(table.items()) == like


@given(
    st.lists(st.builds(Key, ids, st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 3)))
)
def test_keys_are_a_set(given_keys: list[Key]) -> None:
    keys, like = Keys(), set()
    for key in given_keys:
        assert keys.add(key) == (key not in like)
        like.add(key)
        assert key in keys and len(keys) == len(like)
    assert Key("1" * 16, "c", "x", 0) not in keys
    assert keys.kinds() == {(key.agent, key.scope) for key in like}
