"""The newest snapshot of each unfinished rollout, next to its turns."""

from pathlib import Path

from rollout_kit.store.files import OutputPaths
from rollout_kit.store.journal import Journal
from rollout_kit.store.turns import read_turns
from rollout_kit.types import JsonObject, Key, StoredTurn

ONE, OTHER = Key("1" * 16, "agent", "", 0), Key("2" * 16, "agent", "", 0)


def store(journal: Journal, key: Key, *contents: JsonObject | None) -> None:
    for content in contents:
        journal.append_turn(StoredTurn(key, 0, content))


def make_snapshot(data: str) -> JsonObject:
    return {"snapshot": ["a"], "data": data}


def open_journal(folder: Path) -> Journal:
    return Journal(OutputPaths(folder / "r.jsonl"))


def list_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("r.d/snapshots/*"))


def test_the_newest_snapshot_of_a_rollout_comes_after_its_turns(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    store(journal, ONE, {"request": "a"}, make_snapshot("1"), {"request": "b"}, make_snapshot("2"))
    store(journal, OTHER, {"request": "c"})
    journal.close(clean=False)
    assert len(list_files(tmp_path)) == 1
    journal = open_journal(tmp_path)
    assert journal.find_turns(ONE) == [{"request": "a"}, {"request": "b"}, make_snapshot("2")]
    assert journal.find_turns(OTHER) == [{"request": "c"}]
    journal.close(clean=False)


def test_a_snapshot_ends_with_its_rollout(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for key in (ONE, OTHER):
        store(journal, key, {"request": "a"}, make_snapshot("1"))
    assert len(list_files(tmp_path)) == 2
    journal.settle(ONE)
    assert len(list_files(tmp_path)) == 1
    store(journal, OTHER, None)
    assert not list_files(tmp_path) and not journal.find_turns(OTHER)
    journal.close(clean=True)
    assert not (tmp_path / "r.d").exists()


def test_what_a_kill_has_left_of_other_rollouts_is_removed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    store(journal, ONE, {"request": "a"}, make_snapshot("1"))
    journal.close(clean=False)
    [kept] = list_files(tmp_path)
    for name in ("0" * 32 + ".json", f"{kept}.draft"):
        (tmp_path / "r.d/snapshots" / name).write_text("{}")
    open_journal(tmp_path).close(clean=False)
    assert list_files(tmp_path) == [kept]


def test_a_snapshot_that_cannot_be_read_does_not_count(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    store(journal, ONE, {"request": "a"}, make_snapshot("1"))
    journal.close(clean=False)
    [kept] = list_files(tmp_path)
    (tmp_path / "r.d/snapshots" / kept).write_bytes(b"{")
    journal = open_journal(tmp_path)
    assert journal.find_turns(ONE) == [{"request": "a"}]
    journal.close(clean=False)


def test_what_came_back_for_a_turn_is_for_readers_only(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    returned = [[{"type": "function_call_output", "output": text}] for text in ("1", "2", "3")]
    pairs = zip("aab", returned, strict=True)
    events = [{"request": name, "returned": each} for name, each in pairs]
    store(journal, ONE, {"request": "a"}, events[0], {"request": "b"}, *events[1:])
    journal.close(clean=False)
    journal = open_journal(tmp_path)
    assert journal.find_turns(ONE) == [{"request": "a"}, {"request": "b"}]
    assert journal.find_returned(ONE, 9) == {"a": returned[1], "b": returned[2]}
    assert journal.find_returned(ONE, 1) == {"b": returned[2]}
    assert journal.find_returned(OTHER, 9) == {}
    assert journal.find_turns(ONE) == read_turns(tmp_path / "r.d/turns.jsonl", ONE)[::2][:2]
    journal.settle(ONE)
    assert journal.find_returned(ONE, 9) == {}
    journal.close(clean=True)
    assert not (tmp_path / "r.d").exists()
