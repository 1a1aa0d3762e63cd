"""The gateway's settings."""

from pydantic import Field

from ops.runtime.settings import ProcessSettings


class GatewaySettings(ProcessSettings):
    """Settings of a gateway process."""

    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen on. Any address but loopback opens the API to the network: set API keys."""

    port: int = Field(8000, ge=1, le=65535)
    """The TCP port to listen on."""

    api_keys_file: str = ""
    """File with a line `name: key` for each API key. Empty: requests need no key."""
