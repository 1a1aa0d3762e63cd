"""Who is who without a key."""

import pytest

from gateway.http.caller import Caller, tenant_at


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
