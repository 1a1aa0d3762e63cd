"""The gateway's settings."""

import socket
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from gateway.api.anthropic.volatile import Volatile
from gateway.http.idempotent import MAX_ANSWER_BYTES
from gateway.http.origin import Access
from gateway.upstream.image_hosts import PATTERN, ImageHosts
from gateway.upstream.stored_room import MAX_RECORD_BYTES
from ops.runtime.address import is_loopback
from ops.runtime.errors import StartError
from ops.runtime.limits import Limits
from ops.runtime.settings import ProcessSettings

_ALIAS = r"[^\s,=]+\s*=\s*[^\s,=]+"
_ORIGIN = r"(\*|[A-Za-z][A-Za-z0-9+.-]*://[^\s,/]+)"


def _limits(value: object) -> object:
    return Limits.parse(value) if isinstance(value, str) else value


class GatewaySettings(ProcessSettings):
    """Settings of a gateway process."""

    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen on. Any address but loopback opens the API to the network, and needs API keys."""

    port: int = Field(8000, ge=1, le=65535)
    """The TCP port to listen on."""

    api_keys_file: str = ""
    """File with a line `name: key` for each API key, besides those that `quire keys` gives out."""

    limits: Annotated[Limits, NoDecode, BeforeValidator(_limits)] = Limits()
    """What every caller may ask for: `name=value` with spaces between, see `ops.runtime.limits`."""

    open_to_all: bool = False
    """Listen beyond loopback without API keys, for whoever reaches the address."""

    allowed_hosts: str = Field("", pattern=r"^[\w.*-]+(\s*,\s*[\w.*-]+)*$|^$")
    """Names under which clients reach the gateway, with commas between them. IP addresses, `host`, the
    machine's own name and names that public DNS does not have need not be named, and none where API keys are
    needed. `*.example.com` is every name below example.com, and `*` any name."""

    allowed_origins: str = Field("", pattern=rf"^({_ORIGIN}(\s*,\s*{_ORIGIN})*)?$")
    """Origins of web pages elsewhere that may use the API, as in `https://app.example.com`, with commas
    between them; `*` is any page. Apps made of pages have other schemes, as in `app://obsidian.md`."""

    max_connections: int = Field(8192, ge=1)
    """Connections that may be open at once. Further ones are answered with 503."""

    max_connections_per_address: int = Field(1024, ge=0)
    """Connections that may be open at once from one address other than loopback; 0: any number. Behind a
    proxy on another machine all clients have its address. The openai package's client opens up to 1,000."""

    image_hosts: str = Field("", pattern=PATTERN)
    """Hosts from which images are fetched whose addresses a request names, with commas between them:
    `images.example.com`, `*.example.com` for every name below it, `*` for any. Only addresses of the Internet
    count, at ports 80 and 443, and those of a host that is named with its port, as in `minio:9000`. Empty: no
    image is fetched."""

    answer_timeout: float = Field(3600, gt=0, le=86400)
    """Seconds that an answer may take whose request has no `timeout`."""

    model_aliases: str = Field("", pattern=rf"^({_ALIAS}(\s*,\s*{_ALIAS})*)?$")
    """Other names of models, as in `gpt-4o=llama, small=quire-tiny`."""

    responses_seconds: int = Field(86400, ge=0, le=10**8)
    """Seconds that responses of `/v1/responses` are stored in Redis; 0: none is."""

    responses_bytes_per_tenant: int = Field(32 * 2**20, ge=2 * MAX_RECORD_BYTES)
    """Bytes that the stored responses of one tenant may take. If they take more, the oldest go."""

    responses_bytes: int = Field(256 * 2**20, ge=2 * MAX_RECORD_BYTES)
    """Bytes that the stored responses of all tenants may take. If they take more, the oldest go."""

    trace_url: str = Field("", pattern=r"^(https?://\S*\{id\}\S*)?$")
    """Where people see a trace, with `{id}` in place of its id, as in `http://127.0.0.1:16686/trace/{id}`.
    The page at /inside leads there. Empty: nowhere."""

    jobs_per_tenant: int = Field(64, ge=1, le=10_000)
    """Background responses that one tenant may have under way at once, and batches."""

    file_bytes: int = Field(64 * 2**20, ge=2**10, le=2**30)
    """Bytes of one file of `/v1/files`."""

    files_bytes_per_tenant: int = Field(128 * 2**20, ge=2**20)
    """Bytes that the files of one tenant may take, those that batches write too."""

    files_bytes: int = Field(512 * 2**20, ge=2**20)
    """Bytes that the files of all tenants may take."""

    files_seconds: int = Field(7 * 86400, ge=3600, le=30 * 86400)
    """Seconds that a file is kept whose request does not say."""

    batch_lines_at_once: int = Field(16, ge=1, le=1024)
    """Lines of a batch that a gateway asks at once."""

    idempotency_seconds: int = Field(3600, ge=0, le=10**8)
    """Seconds that an answer is kept in Redis whose request has an `Idempotency-Key`; 0: the header changes
    nothing."""

    idempotency_bytes: int = Field(64 * 2**20, ge=2 * MAX_ANSWER_BYTES)
    """Bytes that these answers may take, and their keys. If they take more, the oldest go."""

    strict_fields: bool = False
    """Refuse requests that have fields which nobody knows, instead of ignoring and naming these."""

    volatile_header: Volatile = "omit"
    """What becomes of the line for billing with which Claude Code begins a system prompt, anew in each
    request: `omit` leaves it out, `last` puts it at the prompt's end."""

    def check_open(self, keyed: bool) -> None:
        """`keyed`: whether requests need a key.

        Raises `StartError` if the API would be open to a network without keys, and nobody has said so."""
        if not (keyed or self.open_to_all or is_loopback(self.host)):
            raise StartError(
                f"QUIRE_HOST={self.host}: beyond loopback API keys are needed (`quire keys add`, or "
                "QUIRE_API_KEYS_FILE); QUIRE_OPEN_TO_ALL=true serves everybody"
            )

    @property
    def stored_bytes(self) -> int:
        """Bytes that all may store in Redis together."""
        responses = self.responses_bytes if self.responses_seconds else 0
        return responses + self.files_bytes + (self.idempotency_bytes if self.idempotency_seconds else 0)

    @property
    def aliases(self) -> dict[str, str]:
        """The names of models by their aliases."""
        pairs = (one.split("=") for one in _listed(self.model_aliases))
        return {alias.strip(): name.strip() for alias, name in pairs}

    @property
    def fetched_from(self) -> ImageHosts | None:
        """The hosts from which images are fetched; None if none are."""
        return ImageHosts(_listed(self.image_hosts)) if self.image_hosts else None

    @property
    def access(self) -> Access:
        """Which hosts the gateway answers to, and which pages may ask it."""
        hosts = [self.host, socket.gethostname(), *_listed(self.allowed_hosts)]
        return Access.of(hosts, origins=_listed(self.allowed_origins))


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
