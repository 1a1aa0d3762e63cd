"""URLs of Redis and of Sentinels."""

import pytest
from redis.asyncio.connection import parse_url

from proto.redis_url import Sentinels, at, without_password


@pytest.mark.parametrize(
    ("url", "host", "there"),
    [
        ("redis://a:1/2", "b", "redis://b:7/2"),
        ("rediss://u:p%40@a/0?ssl_ca_certs=x", "fd00::7", "rediss://u:p%40@[fd00::7]:7/0?ssl_ca_certs=x"),
    ],
)
def test_another_server(url: str, host: str, there: str) -> None:
    assert at(url, host, 7) == there


def test_all_that_a_url_of_sentinels_can_say() -> None:
    found = Sentinels.of(
        "rediss+sentinel://worker:p%40@one:1,[::2]:2,three/main/3"
        "?sentinel_username=u%2F&sentinel_password=p%26&ssl_ca_certs=%2Fca.pem"
    )
    assert found is not None
    assert found.urls == (
        "rediss://u%2F:p%26@one:1?ssl_ca_certs=%2Fca.pem",
        "rediss://u%2F:p%26@[::2]:2?ssl_ca_certs=%2Fca.pem",
        "rediss://u%2F:p%26@three:26379?ssl_ca_certs=%2Fca.pem",
    )
    assert found.question == ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
    assert found.primary([b"10.0.0.7", b"6380"]) == (
        "rediss://worker:p%40@10.0.0.7:6380/3?ssl_ca_certs=%2Fca.pem"
    )
    assert found.primary(None) is None


def test_options_of_the_server_alone_are_not_for_the_sentinels() -> None:
    options = "?username=worker&password=p%26&db=3"
    found = Sentinels.of(f"redis+sentinel://one/main{options}&ssl_cert_reqs=none&sentinel_password=x")
    assert found is not None
    assert found.urls == ("redis://:x@one:26379?ssl_cert_reqs=none",)
    primary = found.primary([b"::7", b"1"])
    assert primary == f"redis://[::7]:1/0{options}&ssl_cert_reqs=none"
    told = parse_url(primary)
    assert (told["username"], told["password"], told["db"]) == ("worker", "p&", 3)


def test_as_little_as_one_says() -> None:
    found = Sentinels.of("redis+sentinel://one/main")
    assert found is not None
    assert found.urls == ("redis://one:26379",)
    assert found.primary([b"::7", b"1"]) == "redis://[::7]:1/0"


@pytest.mark.parametrize(
    "url", ["redis://a:1/0", "rediss://a", "unix:///run/a.sock", "redis://a/x+sentinel:"]
)
def test_a_server_has_none(url: str) -> None:
    assert Sentinels.of(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://one:1",
        "redis+sentinel://one:1/",
        "redis+sentinel:///main",
        "redis+sentinel://one:x/main",
        "redis+sentinel://one:1,/main",
        "redis+sentinel://:sec#ret@one:1/main",
        "redis+sentinel://one:1/main/zero",
        "unix+sentinel://one:1/main",
    ],
)
def test_half_a_url_of_sentinels_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="Sentinels"):
        Sentinels.of(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:secret@host:1/0", "redis://:***@host:1/0"),
        ("redis://user:secret@host:1/0", "redis://user:***@host:1/0"),
        ("redis://user:sec@ret/@host:1/0", "redis://user:***@host:1/0"),
        ("unix://user:secret@/run/redis.sock", "unix://user:***@/run/redis.sock"),
        ("localhost:6379", "localhost:6379"),
        ("redis://host:1/0?password=secret&db=1", "redis://host:1/0?password=***&db=1"),
        (
            "redis+sentinel://user:secret@a:1,b:2/main?sentinel_password=secret&x=y",
            "redis+sentinel://user:***@a:1,b:2/main?sentinel_password=***&x=y",
        ),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
