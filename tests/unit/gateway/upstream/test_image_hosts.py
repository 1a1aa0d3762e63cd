"""Which hosts and addresses images are fetched from."""

import socket

import httpcore2
import pytest

from gateway.upstream.image_hosts import FIRST_SECONDS, CheckedBackend, ImageHosts, is_public


@pytest.mark.parametrize(
    ("names", "host", "port", "allowed"),
    [
        (["example.com"], "example.com", 443, True),
        (["Example.com"], "example.com", 80, True),
        (["example.com"], "example.com", 8443, False),
        (["example.com"], "a.example.com", 443, False),
        (["example.com"], "notexample.com", 443, False),
        (["*.example.com"], "a.b.example.com", 443, True),
        (["*.example.com"], "example.com", 443, False),
        (["*.example.com"], "example.com.evil.net", 443, False),
        (["*"], "anything.net", 443, True),
        (["*"], "anything.net", 6379, False),
        (["*:8080"], "anything.net", 8080, True),
        (["minio:9000"], "minio", 9000, True),
        (["minio:9000"], "minio", 80, False),
        (["[::1]:9000"], "::1", 9000, True),
        (["*.bücher.de"], "a.xn--bcher-kva.de", 443, True),
        (["other.net", "example.com"], "example.com", 443, True),
        ([], "example.com", 443, False),
    ],
)
def test_hosts_that_are_named(names, host, port, allowed):
    assert ImageHosts(names).allow(host, port) is allowed


@pytest.mark.parametrize(
    ("name", "private"), [("minio:9000", True), ("minio", False), ("*:9000", False), ("*io:9000", False)]
)
def test_only_what_is_named_with_its_port_may_be_private(name, private):
    assert ImageHosts([name]).may_be_private("minio", 9000) is private


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("64:ff9b::5db8:d70e", True),  # 93.184.215.14
        *dict.fromkeys(
            [
                *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
                *("0.0.0.0", "224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1"),
                *("168.63.129.16", "192.0.0.192", "::ffff:168.63.129.16"),
                *("::1", "::", "fe80::1", "fe80::1%2", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1"),
                *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::10.0.0.1", "2002:7f00:1::", "64:ff9b::a00:1"),
            ],
            False,
        ).items(),
    ],
)
def test_public_addresses(address, public):
    assert is_public(address) is public


class Addresses(list):
    def __init__(self):
        self.seconds = []


@pytest.fixture
def connected(monkeypatch):
    """Addresses that are connected to, and within which seconds."""
    connected = Addresses()

    async def connect(self, host, port, timeout, *_):
        connected.append(host)
        connected.seconds.append(timeout)
        if host.endswith(".1"):
            raise httpcore2.ConnectError("nobody there")
        return "a stream"

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect)
    return connected


@pytest.fixture
def names(monkeypatch):
    """What is found of names, each time they are looked up."""
    names = []

    def look(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in names.pop(0)]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    return names


async def test_what_was_looked_up_is_what_is_connected_to(names, connected):
    names += [["93.184.215.14"], ["127.0.0.2"]]
    backend = CheckedBackend(ImageHosts(["*"]))
    assert await backend.connect_tcp("rebinds.net", 80) == "a stream"
    with pytest.raises(httpcore2.ConnectError):
        await backend.connect_tcp("rebinds.net", 80)
    assert connected == ["93.184.215.14"]


async def test_of_several_addresses_the_public_ones_are_tried_in_turn(names, connected):
    names.append(["10.0.0.2", "93.184.215.1", "93.184.215.14", "93.184.215.15"])
    await CheckedBackend(ImageHosts(["*"])).connect_tcp("many.net", 443, 5.0)
    assert connected == ["93.184.215.1", "93.184.215.14"]
    assert connected.seconds == [FIRST_SECONDS] * 2
    names.append(["93.184.215.1", "93.184.215.14"])
    await CheckedBackend(ImageHosts(["*"])).connect_tcp("many.net", 443, 5.0)
    assert connected.seconds[2:] == [FIRST_SECONDS, 5.0]


async def test_a_host_that_is_named_with_its_port_may_be_in_the_network(names, connected):
    names.append(["10.0.0.2"])
    await CheckedBackend(ImageHosts(["minio:9000"])).connect_tcp("minio", 9000)
    assert connected == ["10.0.0.2"]


async def test_a_name_that_there_is_not(monkeypatch):
    def look(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look)
    with pytest.raises(httpcore2.ConnectError):
        await CheckedBackend(ImageHosts(["*"])).connect_tcp("nowhere.net", 80)
