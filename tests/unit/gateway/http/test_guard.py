"""What a caller may do besides asking the models."""

from typing import Any

import pytest

from gateway.http.caller import Caller
from gateway.http.guard import Guard
from gateway.http.key_ring import KeyRing
from ops.runtime.api_keys import Key, digest_of
from ops.runtime.limits import Limits

ALL = {"inside", "text"}


async def caller(keys: KeyRing, address: str, **headers: str) -> Caller:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": "/v1/inside", "client": (address, 1), "headers": raw}
    await Guard(app, keys, Limits(), meter=None)(scope, None, None)  # type: ignore[arg-type]
    found = scopes[0]["state"]["caller"]
    assert isinstance(found, Caller)
    return found


@pytest.mark.parametrize(
    ("address", "headers", "rights"),
    [
        ("127.0.0.1", {}, ALL),
        ("::1", {}, ALL),
        ("127.0.0.1", {"x_forwarded_for": "192.0.2.7"}, set()),
        ("127.0.0.1", {"forwarded": "for=192.0.2.7"}, set()),
        ("127.0.0.1", {"via": "1.1 proxy"}, set()),
        ("172.17.0.1", {}, set()),
    ],
)
async def test_without_keys_only_who_sits_at_this_machine_has_rights(
    address: str, headers: dict[str, str], rights: set[str]
) -> None:
    assert (await caller(KeyRing(), address, **headers)).rights == rights


@pytest.mark.parametrize("rights", [set(), {"inside"}, ALL])
async def test_with_keys_a_caller_has_the_rights_of_its_key(rights: set[Any]) -> None:
    key = Key(name="north", tenant="north", rights=frozenset(rights))
    found = await caller(KeyRing({digest_of("secret"): key}), "127.0.0.1", authorization="Bearer secret")
    assert found.rights == rights
