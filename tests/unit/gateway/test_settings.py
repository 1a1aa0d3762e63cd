"""What keeps a gateway from being opened by mistake."""

import pytest

from gateway import __main__ as main
from gateway.settings import GatewaySettings
from ops.runtime.errors import StartError, UsageError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_keys(host):
    GatewaySettings(host=host).check_open(False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "there.is.no.such.name.invalid"])
def test_beyond_loopback_somebody_must_have_meant_it(host):
    with pytest.raises(StartError, match=r"^QUIRE_HOST=.*QUIRE_API_KEYS_FILE.*QUIRE_OPEN_TO_ALL") as refused:
        GatewaySettings(host=host).check_open(False)
    assert "\n" not in str(refused.value)
    GatewaySettings(host=host).check_open(True)
    GatewaySettings(host=host, open_to_all=True).check_open(False)


def test_aliases(monkeypatch):
    monkeypatch.setenv("QUIRE_MODEL_ALIASES", "gpt-4o = llama,small=quire-tiny")
    assert GatewaySettings.read().aliases == {"gpt-4o": "llama", "small": "quire-tiny"}
    for text in ("gpt-4o", "a=b=c", "a=b,", "=b"):
        monkeypatch.setenv("QUIRE_MODEL_ALIASES", text)
        with pytest.raises(UsageError, match="QUIRE_MODEL_ALIASES"):
            GatewaySettings.read()


async def test_the_process_does_not_start_then(redis_url):
    settings = GatewaySettings(host="0.0.0.0", redis_url=redis_url, stream_prefix="no-keys-here:")
    with pytest.raises(StartError, match="QUIRE_OPEN_TO_ALL"):
        await main.serve(None, settings)


async def test_nor_before_it_knows_whether_there_are_keys():
    with pytest.raises(ConnectionError, match="keys cannot be read"):
        await main.serve(None, GatewaySettings(redis_url="redis://127.0.0.1:1/0"))
