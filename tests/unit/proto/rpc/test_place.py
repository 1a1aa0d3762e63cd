"""Where a server's reply leads."""

import pytest

from proto.rpc.place import TAGGED, Place

URL = "rediss://worker:p%40ss@redis.example:7000/0?ssl_ca_certs=ca.pem"


@pytest.mark.parametrize(
    ("reply", "where"),
    [
        ("MOVED 3999 10.0.0.7:6381", "10.0.0.7:6381"),
        ("MOVED 3999 two.redis.example:6381", "two.redis.example:6381"),
        ("MOVED 3999 :6381", "redis.example:6381"),  # it does not know its own name
        ("MOVED 3999 fd00::7:6381", "[fd00::7]:6381"),
    ],
)
def test_another_server_is_reached_as_the_first_one(reply: str, where: str) -> None:
    place = Place(URL)
    assert place.moved(reply)
    assert place.url == f"rediss://worker:p%40ss@{where}/0?ssl_ca_certs=ca.pem"
    place.lost(place.url)
    assert place.url == URL


def test_the_servers_of_a_cluster_are_tried_in_turn() -> None:
    place = Place("redis://:p@one:7000/0")
    servers = [[0, 99, [b"one", 7000, b"id"], [b"two", 7000, b"id"]], [100, 999, [b"", 7001, b"id", []]]]
    place.learn(servers)
    tried = []
    for _ in range(4):
        tried.append(place.url)
        place.lost(place.url)
    others = {"redis://:p@two:7000/0", "redis://:p@one:7001/0"}
    assert (tried[0], set(tried[1:3]), tried[3]) == ("redis://:p@one:7000/0", others, tried[0])
    assert place.moved("MOVED 3999 three:7000")
    place.lost(place.url)
    assert place.url == tried[0], "one that was not among them"
    place.learn(ValueError("NOPERM"))
    place.lost(place.url)
    assert place.url in others


def test_a_server_is_lost_once_however_many_connections_it_had() -> None:
    place = Place("redis://one:7000/0")
    place.learn([[0, 99, [b"two", 7000, b"id"], [b"three", 7000, b"id"]]])
    for _ in range(3):
        place.lost("redis://one:7000/0")
    assert place.url == "redis://three:7000/0"
    assert place.moved("MOVED 3999 two:7000")
    place.lost("redis://three:7000/0")
    assert place.url == "redis://two:7000/0", "it was found meanwhile"


@pytest.mark.parametrize(
    "reply", ["ASK 3999 10.0.0.7:6381", "READONLY You can't", "ERR MOVED 1 a:2", "MOVED"]
)
def test_other_errors_lead_nowhere(reply: str) -> None:
    place = Place(URL)
    assert not place.moved(reply)
    assert place.url == URL


def test_a_socket_is_no_place_in_a_cluster() -> None:
    assert not Place("unix:///run/redis.sock").moved("MOVED 3999 10.0.0.7:6381")


@pytest.mark.parametrize("reply", ["MOVED 3999 10.0.0.7:6381", "READONLY You can't"])
def test_who_has_sentinels_is_led_by_them_alone(reply: str) -> None:
    url = "redis+sentinel://one:26379,[fd00::7]:26379/main"
    place = Place(url)
    assert not place.moved(reply)
    assert place.url == url


@pytest.mark.parametrize(
    ("prefix", "tagged"),
    [("{one}:", True), ("a{b}c:", True), ("quire:", False), ("{}:", False), ("{one:", False), ("", False)],
)
def test_which_prefixes_keep_keys_together(prefix: str, tagged: bool) -> None:
    assert bool(TAGGED.match(prefix)) is tagged
