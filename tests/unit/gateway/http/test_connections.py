"""Open connections are counted in all and by address."""

import pytest

from gateway.errors import Overloaded, Unavailable
from gateway.http.connections import ConnectionLimits, Doors, is_loopback
from gateway.settings import GatewaySettings


def test_an_address_has_so_many_connections():
    doors = Doors(ConnectionLimits(per_address=2))
    assert [doors.enter("203.0.113.1") for _ in range(2)] == [None, None]
    refused = doors.enter("203.0.113.1")
    assert isinstance(refused, Overloaded)
    assert "more than 2 (QUIRE_MAX_CONNECTIONS_PER_ADDRESS)" in refused.message
    assert isinstance(doors.enter("::ffff:203.0.113.1"), Overloaded), "the same address"
    assert doors.enter("203.0.113.2") is None
    for _ in range(3):
        doors.leave("203.0.113.1")
    assert doors.enter("203.0.113.1") is None


def test_who_is_refused_while_all_connections_are_taken_has_no_more_later():
    doors = Doors(ConnectionLimits(connections=3, per_address=2))
    assert [doors.enter(f"203.0.113.{last}") for last in (1, 1, 2)] == [None] * 3
    assert isinstance(doors.enter("203.0.113.1"), Unavailable)
    doors.leave("203.0.113.1")
    doors.leave("203.0.113.2")
    assert isinstance(doors.enter("203.0.113.1"), Overloaded), "it still has two"


def test_who_may_only_ask_for_health_takes_nobodys_place():
    doors = Doors(ConnectionLimits(connections=1))
    assert doors.enter(None) is None
    for probe in range(3):
        assert isinstance(doors.enter(None), Unavailable)
        doors.let_probe(probe, lambda: None)
    doors.leave(None)
    assert doors.enter(None) is None
    assert isinstance(doors.enter(None), Unavailable)


def test_an_ipv6_site_is_one_address():
    doors = Doors(ConnectionLimits(per_address=2))
    assert doors.enter("2001:db8::1") is None
    assert doors.enter("2001:db8::ffff:1") is None
    assert isinstance(doors.enter("2001:db8::2"), Overloaded)
    assert doors.enter("2001:db8:0:1::2") is None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", None])
def test_loopback_is_bounded_in_all(address):
    doors = Doors(ConnectionLimits(connections=3, per_address=1))
    assert [doors.enter(address) for _ in range(3)] == [None] * 3
    assert isinstance(doors.enter(address), Unavailable)


def test_a_client_of_the_openai_package_has_room():
    doors = Doors(ConnectionLimits(per_address=GatewaySettings().max_connections_per_address))
    assert [doors.enter("203.0.113.1") for _ in range(1000)] == [None] * 1000


def test_no_bound_by_address():
    doors = Doors(ConnectionLimits(per_address=0))
    assert [doors.enter("203.0.113.1") for _ in range(1000)] == [None] * 1000


def test_nothing_is_kept_of_those_who_have_left():
    doors = Doors(ConnectionLimits(connections=10))
    for number in range(1000):
        address = f"203.0.{number // 250}.{number % 250}"
        assert doors.enter(address) is None
        doors.leave(address)
    assert not doors._by_address


@pytest.mark.parametrize("address", ["192.0.2.1", "::", "0.0.0.0", "fe80::1%eth0", "nonsense"])
def test_what_is_not_loopback(address):
    assert not is_loopback(address)
