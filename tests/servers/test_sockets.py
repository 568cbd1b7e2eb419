"""Who gets which port, and what is said where it is taken."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from rollout_kit.config.instances import AGENTS, MODELS, Instance
from rollout_kit.errors import ConfigError
from rollout_kit.launch import ports
from rollout_kit.launch.ports import bind_all, warm_up_agent
from rollout_kit.serving.sockets import bound_socket

LOOPBACK = "127.0.0.1"


def agent(**more: Any) -> Instance:
    return Instance("agent", AGENTS, "simple_agent", {}, **more)


def model(**more: Any) -> Instance:
    return Instance("policy_model", MODELS, "openai_model", more.pop("settings", {}), **more)


@contextmanager
def bound(*instances: Instance) -> Iterator[dict[str, list[int]]]:
    found = bind_all(instances, instances, LOOPBACK)
    try:
        yield {name: [sock.getsockname()[1] for sock in own] for name, own in found.items()}
    finally:
        for own in found.values():
            for sock in own:
                sock.close()


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port, which stands for the one of warm-up requests: that one may be in use here."""
    with bound_socket(LOOPBACK, 0) as sock:
        port = sock.getsockname()[1]
    monkeypatch.setattr(ports, "WARM_UP_PORT", port)
    return port


def test_a_single_agent_takes_the_usual_port_if_it_is_free(free: int) -> None:
    with bound(agent(), model()) as ports:
        assert ports["agent"] == [free] and ports["policy_model"] != [free]
    with bound_socket(LOOPBACK, free), bound(agent()) as ports:
        assert ports["agent"] != [free]


def test_the_first_of_several_agents_takes_the_usual_port(free: int) -> None:
    second = Instance("second", AGENTS, "simple_agent", {})
    with bound(agent(), second, model()) as ports:
        assert ports["agent"] == [free] and ports["second"] != [free]


def test_a_server_that_is_given_the_usual_port_gets_it(free: int) -> None:
    with bound(agent(), model(port=free)) as ports:
        assert ports["policy_model"] == [free] != ports["agent"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_the_agent_never_sits_where_its_model_is_looked_for(host: str) -> None:
    """A vLLM that is not up yet: the agent would ask itself."""
    there = model(settings={"openai_base_url": f"http://{host}:8000/v1"})
    assert warm_up_agent([agent(), there]) is None
    elsewhere = model(settings={"openai_base_url": "http://10.0.0.7:8000/v1"})
    next_door = model(settings={"openai_base_url": f"http://{host}:80001/v1"})
    assert warm_up_agent([agent(), elsewhere]) is not None
    assert warm_up_agent([agent(), next_door]) is not None


def test_a_reply_waits_for_nobody_s_acknowledgement() -> None:
    """asyncio sees by the protocol that it may turn Nagle's algorithm off."""
    with bound_socket(LOOPBACK, 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP


def test_a_port_that_is_taken_is_named() -> None:
    with bound_socket(LOOPBACK, 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"^policy_model: cannot listen on {LOOPBACK}:{port}:"
        ):
            bind_all([model(port=port)], [model(port=port)], LOOPBACK)


def _second_of_two_free_ports() -> int:
    while True:
        with bound_socket(LOOPBACK, 0) as sock, suppress(OSError):
            port = sock.getsockname()[1]
            bound_socket(LOOPBACK, port - 1).close()
            return port


def test_two_servers_with_one_port_are_both_named_and_let_go_of_what_they_took() -> None:
    port = _second_of_two_free_ports()
    both = [agent(port=port), model(port=port - 1, num_workers=2)]
    with pytest.raises(ConfigError, match="by 'agent', which is given the same"):
        bind_all(both, both, LOOPBACK)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind((LOOPBACK, port))
