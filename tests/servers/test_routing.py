"""Requests go where their prefix is cached, and no server gets much more than its share."""

from dataclasses import dataclass, replace

import pytest

from benchmarks.routing import WORKLOADS, Workload, by_routing, lost_and_spread
from responses_api_models.vllm_model.routing import MUCH, SOME, Routing


@dataclass(eq=False)
class Fake:
    in_flight: int = 0
    num_requests: int = 0


def test_a_session_stays_and_a_task_stays_while_there_is_room() -> None:
    one, other = servers = [Fake(), Fake()]
    routing = Routing[Fake]()
    assert routing.choose(servers, "s1", "t1") is one
    one.in_flight = 3
    assert routing.choose(servers, "s2", "t1") is one, "its prompt is cached there"
    assert routing.choose(servers, "s3", "t2") is other, "a new task goes to the least busy"
    one.in_flight = 2 * SOME + 4
    assert one.in_flight >= MUCH * one.in_flight / 2 + SOME
    assert routing.choose(servers, "s1", "t1") is one, "a session has more to lose"
    assert routing.choose(servers, "s4", "t1") is other, "no room"
    one.in_flight = 0
    assert routing.choose(servers, "s5", "t1") is other, "its prompt is cached there now"


def test_a_server_that_failed_gets_nothing() -> None:
    one, other = servers = [Fake(), Fake()]
    routing = Routing[Fake]()
    assert routing.choose(servers, "s1", "t1") is one
    assert routing.choose([other], "s1", "t1") is other
    assert routing.choose(servers, "s1", "t1") is other, "where its turns are cached now"
    assert routing.choose([], "s1", "t1") is None
    assert routing.choose(servers) in servers


@pytest.mark.parametrize("replicas", [2, 8])
@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.name)
def test_few_hits_are_lost_and_load_is_spread(work: Workload, replicas: int) -> None:
    smaller = replace(work, prompt=work.prompt // 4, added=160, cache=work.cache // 4)
    lost, spread = lost_and_spread(smaller, replicas, by_routing())
    assert lost <= 0.05
    assert spread <= 1.3
