"""Long conversations: what was encoded, parsed or digested once is never used for anything else."""

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_kit.items import TrackedList, TrackedObject, track
from rollout_kit.responses import function_call_item, function_call_output, message_item
from rollout_kit.serving import registry
from rollout_kit.serving.agent import Turns
from rollout_kit.serving.hosted_model import LONG
from rollout_kit.serving.transport.connection import Headers, Reply
from rollout_kit.serving.transport.conversation import (
    Digests,
    RequestReader,
    RequestWriter,
    SplitRequest,
    old_digest,
)
from rollout_kit.serving.transport.peers import Local, Peers
from rollout_kit.serving.transport.wire import canonical_request
from rollout_kit.session import Session, entered

SCALARS = st.sampled_from(["a", "ü\0", 0, 1, True, False, None, 1.0, 2.5, "]", ",", '"input":['])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=6,
)
ITEMS = st.builds(
    lambda fields, is_tracked: track(fields) if is_tracked else fields,
    st.dictionaries(st.sampled_from(["id", "type", "content", "output"]), VALUES, min_size=1),
    st.booleans(),
)
OTHERS = st.dictionaries(st.sampled_from(["model", "tools", "n"]), VALUES, max_size=2)


def containers(value: Any) -> list[Any]:
    """The value and all objects and lists in it."""
    if not isinstance(value, dict | list):
        return []
    inner = value.values() if isinstance(value, dict) else value
    return [value, *(each for part in inner for each in containers(part))]


OF_OBJECTS: list[Callable[[Any, Any], object]] = [
    lambda it, value: it.__setitem__("x", value),
    lambda it, value: it.update(x=value),
    lambda it, value: it.update({"y": value}),
    lambda it, value: it.setdefault("z", value),
    lambda it, value: it.__ior__({"type": value}),
    lambda it, value: it.pop("x", None),
    lambda it, value: it.popitem() if it else None,
    lambda it, value: it.__delitem__(next(iter(it))) if it else None,
    lambda it, value: it.clear(),
]
OF_LISTS: list[Callable[[Any, Any], object]] = [
    lambda it, value: it.append(value),
    lambda it, value: it.extend([value, value]),
    lambda it, value: it.insert(0, value),
    lambda it, value: it.__iadd__([value]),
    lambda it, value: it.__imul__(2),
    lambda it, value: it.__setitem__(slice(0, 1), [value]),
    lambda it, value: it.__setitem__(0, value) if it else None,
    lambda it, value: it.__delitem__(slice(0, 1)),
    lambda it, value: it.pop() if it else None,
    lambda it, value: it.remove(it[0]) if it else None,
    lambda it, value: it.reverse(),
    lambda it, value: it.sort(key=str),
    lambda it, value: it.clear(),
]


def edit(draw: Callable[[Any], Any], items: list[Any]) -> None:
    """Change something anywhere in the items, or the list of them."""
    found = draw(st.sampled_from(containers(items)))
    kinds = OF_OBJECTS if isinstance(found, dict) else OF_LISTS
    value = draw(ITEMS if found is items else VALUES)
    draw(st.sampled_from(kinds))(found, value)


@given(st.data())
def test_a_request_is_written_as_it_is_now(data: st.DataObject) -> None:
    draw = data.draw
    items, others, sender = draw(st.lists(ITEMS, max_size=3)), draw(OTHERS), RequestWriter()
    for _ in range(draw(st.integers(2, 7))):
        match draw(st.sampled_from(["more", "more", "edit", "list", "others", "same", "copies"])):
            case "more":
                items += draw(st.lists(ITEMS, min_size=1, max_size=2))
            case "edit":
                edit(draw, items)
            case "list":
                items = items[draw(st.integers(0, 2)) :]
            case "others":
                others = draw(OTHERS)
            case "copies":
                items = draw(st.sampled_from([copy.copy, copy.deepcopy, list]))(items)
            case _:
                pass
        is_first = draw(st.booleans())
        request = {"input": items, **others} if is_first else {**others, "input": items}
        assert bytes(sender.write(request)) == orjson.dumps(request)


def test_only_what_is_new_is_encoded() -> None:
    sender, receiver = RequestWriter(), RequestReader()
    items = [track({"role": "user", "content": [{"text": f"{number}" * 99}]}) for number in "ab"]
    sender.write({"input": items})
    for number in range(9):
        items = [*items, track({"role": "user", "content": f"{number}" * 99})]
        asked = sender.write({"input": items, "n": 1})
        assert isinstance(asked, SplitRequest)
        assert len(receiver.read(asked)["input"]) == (1 if number else 3)
        assert len(asked.pieces) < 9


def test_an_edit_in_any_depth_is_noticed_for_good() -> None:
    sender, item = RequestWriter(), track({"content": [{"text": "a", "more": {}}]})
    for _ in range(2):
        sender.write({"input": [item]})
    added: dict[str, Any] = {}
    item["content"][0]["more"]["x"] = added
    assert bytes(sender.write({"input": [item]})) == b'{"input":[%b]}' % orjson.dumps(item)
    added["y"] = 1  # what was put in notices nothing itself
    assert b'"y":1' in bytes(sender.write({"input": [item]}))


def test_an_item_in_two_conversations_is_right_in_both() -> None:
    item, senders = track({"text": "a"}), (RequestWriter(), RequestWriter())
    for sender in senders:
        for _ in range(2):
            sender.write({"input": [item]})
    item["text"] = "b"
    for sender in senders:
        assert bytes(sender.write({"input": [item]})) == b'{"input":[{"text":"b"}]}'


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, through_pickle])
def test_copies_are_plain(make: Callable[[Any], Any]) -> None:
    item = track({"content": [{"text": "a"}]})
    assert type(item) is TrackedObject and type(item["content"]) is TrackedList
    made = make(item)
    assert type(made) is dict and made == item
    assert type(item | {"x": 1}) is dict


def test_what_cannot_be_written_is_named() -> None:
    sender = RequestWriter()
    for _ in range(2):
        with pytest.raises(TypeError, match=r"input\[0\]\.x"):
            sender.write({"input": [{"x": object()}]})
    assert bytes(sender.write({"input": [{"x": 1}]})) == b'{"input":[{"x":1}]}'


def change(items: list[Any]) -> list[Any]:
    """As a model server changes items: some are left out, and some are others."""
    return [
        {**item, "type": "changed"} if item.get("output") else item
        for item in items
        if item.get("type") != "a"
    ]


@given(st.data())
def test_a_receiver_passes_on_what_a_reader_of_the_whole_would(data: st.DataObject) -> None:
    draw, receiver, sender = data.draw, RequestReader(), RequestWriter()
    over_http = draw(st.booleans())
    items: list[Any] = draw(st.lists(ITEMS, max_size=2))
    for _ in range(draw(st.integers(2, 6))):
        if draw(st.booleans()):
            items = [*items, *draw(st.lists(ITEMS, max_size=2))]
        elif draw(st.booleans()):
            edit(draw, items)
        if any(not isinstance(item, dict) for item in items):
            break
        request = {"model": "m", "input": items, **draw(st.sampled_from([{}, {"n": 1}]))}
        asked, made_for = sender.write(request), draw(st.sampled_from("ab"))
        read = receiver.read(bytes(asked) if over_http or isinstance(asked, bytes) else asked)
        if receiver.asked is None:
            assert read == orjson.loads(orjson.dumps(request))
            continue
        assert bytes(receiver.asked) == orjson.dumps(request)
        expected = orjson.dumps(change(orjson.loads(orjson.dumps(items))))
        assert b"".join(receiver.make(change, made_for)) == expected
        assert receiver.read_whole() == orjson.loads(orjson.dumps(request))


@pytest.mark.parametrize(
    "odd",
    [
        b'{"input": [{"a":1},{"b":2},{"c":3}]}',
        b'{"input":[{"a":1},{"b":2},{"c":3}],"input":[{"z":1}]}',
        b'{"n":{"input":[{"a":1},{"b":2}]},"input":[{"a":1},{"b":2},{"c":3}]}',
        b'{"input":[{"a":1},{"b":2},{"c":3e0}]}',
        b'{"input":[{"a":1},{"b":2}],"n":1,"n":2}',
        b'{"input":"text"}',
        b"{}",
        b"",
    ],
)
def test_json_that_we_would_not_write_is_read_as_a_whole(odd: bytes) -> None:
    receiver = RequestReader()
    for raw in (b'{"input":[{"a":1}]}', b'{"input":[{"a":1},{"b":2}]}', odd, odd):
        read = receiver.read(raw)
        whole = read if receiver.asked is None else receiver.read_whole()
        assert whole == orjson.loads(raw or b"{}")


def test_what_is_no_json_is_refused_and_the_next_request_is_read() -> None:
    receiver, good = RequestReader(), b'{"input":[{"a":1},{"b":2}]}'
    for raw in (b'{"input":[{"a":1}]}', b'{"input":[{"a":1}]}'):
        receiver.read(raw)
    for bad in (b'{"input":[{"a":1},]}', b'{"input":[{"a":1}', b'{"input":[{"a":1},{"b":2}]'):
        with pytest.raises(Exception, match="not JSON"):
            receiver.read(bad)
        assert receiver.read(good) == orjson.loads(good)


@given(st.data())
def test_equal_requests_have_equal_digests_however_they_came_about(data: st.DataObject) -> None:
    draw, sender, digests = data.draw, RequestWriter(), Digests()
    seen: dict[bytes, str] = {}
    items: list[Any] = draw(st.lists(ITEMS, max_size=2))
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            items = [*items, *draw(st.lists(ITEMS, max_size=2))]
        elif draw(st.booleans()):
            edit(draw, items)
        request = {"input": items, **draw(st.sampled_from([{}, {"n": 1}]))}
        asked = sender.write(request)
        found = digests.of(asked) if draw(st.booleans()) else Digests().of(bytes(asked))
        canonical = canonical_request(orjson.loads(orjson.dumps(request)))
        assert seen.setdefault(canonical, found) == found
        assert Digests().of(orjson.dumps(request)) == found
    assert len(set(seen.values())) == len(seen)


def test_ids_of_items_make_no_difference_and_their_order_does() -> None:
    def digest(*items: Any) -> str:
        return Digests().of(orjson.dumps({"input": list(items)}))

    assert digest({"id": "1", "a": 1}) == digest({"a": 1, "id": "2"}) == digest({"a": 1})
    assert digest({"a": 1}, {"b": 1}) != digest({"b": 1}, {"a": 1})
    assert digest() != Digests().of(b'{"input":null}')
    assert len(digest()) != len(old_digest(b"{}"))


class Endpoint:
    """Stands in for the network: keeps the body of each request, and answers with a call."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def post(self, url: str, raw: bytes | list[bytes], **options: Any) -> Reply:
        self.bodies.append(raw if isinstance(raw, bytes) else b"".join(raw))
        call = {**function_call_item("look", "{}"), "id": f"fc_{len(self.bodies)}"}
        output = [message_item("word " * 400), call]
        return Reply(200, Headers([]), orjson.dumps({"output": output}))


class AsBytes(Local):
    """Passes requests on as they arrive over HTTP."""

    def send(self, path: str, raw: Any, turn_log: Any = None) -> Any:
        return super().send(path, bytes(raw), turn_log)


@pytest.mark.parametrize("transport", [Local, AsBytes])
def test_an_endpoint_gets_every_turn_as_a_whole(transport: type[Local]) -> None:
    cls: Any = registry.load("responses_api_models", "openai_model")
    settings = {"openai_base_url": "http://model/v1", "openai_model": "m"}
    model = cls(cls.Config.model_validate(settings), Peers({}), "policy_model")
    model._http = endpoint = Endpoint()
    row = {"tools": [{"type": "function", "name": "look"}], "temperature": 0.5}

    async def talk() -> None:
        turns = Turns(Peers({"policy_model": transport(model)}), "policy_model")
        items: list[Any] = [{"role": "user", "content": "Begin."}]
        for number in range(60):
            if number == 45:
                items[20]["id"] = "edited"
            before = orjson.dumps(items)
            response = await turns.ask({**row, "input": items})
            sent = orjson.loads(endpoint.bodies[-1])
            assert sent == {"model": "m", **row, "input": orjson.loads(before)}
            items = [*items, *response["output"]]
            items.append(function_call_output(items[-1]["call_id"], f"{number}"))

    with entered(Session()):
        asyncio.run(talk())
    assert len(endpoint.bodies[-1]) > LONG
    assert b'"edited"' in endpoint.bodies[-1]
