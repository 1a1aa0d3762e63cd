"""Places of requests that wait for the answers of others."""

from contextlib import ExitStack

import pytest

from gateway.errors import Overloaded
from gateway.followers import Followers


def test_a_tenant_that_waits_leaves_places_to_others() -> None:
    followers, waiting = Followers(4), ExitStack()
    waiting.enter_context(followers.place("t"))
    waiting.enter_context(followers.place("t"))
    with pytest.raises(Overloaded), followers.place("t"):
        pass
    with followers.place("u"):
        assert len(followers) == 3
    waiting.close()
    assert not len(followers)
    with followers.place("t"):
        pass
