"""Who is who without a key."""

import pytest

from gateway.errors import Forbidden
from gateway.http.caller import Caller, at_loopback, tenant_at


@pytest.mark.parametrize(
    ("address", "tenant"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff:ffff:ffff:ffff", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("::1", "::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_one_client_is_one_tenant_whatever_addresses_it_has(address: str, tenant: str) -> None:
    assert tenant_at(address) == tenant


def test_only_tenants_with_keys_have_caches_of_their_own() -> None:
    assert Caller("192.0.2.7").salt("mine") == "mine"
    assert Caller("north", keyed=True).salt("mine") == "north:mine"
    assert Caller("north", keyed=True).salt("") == "north:"


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.7", False),
        ("::ffff:192.0.2.7", False),
        ("172.17.0.1", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_who_sits_at_this_machine(address: str, here: bool) -> None:
    assert at_loopback(address) == here


def test_texts_of_others_are_read_with_a_right_of_its_own() -> None:
    north = Caller("north", keyed=True, rights=frozenset({"inside"}))
    assert north.may_read("north")
    assert not north.may_read("south")
    assert not Caller("north", rights=frozenset({"inside"})).may_read("north")  # an address may be of many
    assert Caller("x", rights=frozenset({"inside", "text"})).may_read("south")


@pytest.mark.parametrize(("keyed", "said"), [(True, "key may not"), (False, "only this machine")])
def test_who_may_not_look_inside_is_told_what_to_do(keyed: bool, said: str) -> None:
    with pytest.raises(Forbidden, match=rf"{said}.*quire keys add NAME --rights inside"):
        Caller("north", keyed=keyed, rights=frozenset({"text"})).check_inside()
