"""Settings out of the environment, and URLs of Redis out of files."""

from pathlib import Path

import pytest
from pydantic import ByteSize

from ops.runtime.errors import UsageError
from ops.runtime.settings import ProcessSettings, named_redis

URL = "redis://gateway:secret@redis:6379/0"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS_URL", "REDIS_URL_FILE", "REDIS_CA_FILE", "SECRET_FILE"):
        monkeypatch.delenv(f"QUIRE_{name}", raising=False)


def test_a_url_in_a_file_takes_the_place_of_one_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "url").write_text(f"{URL}\n")
    monkeypatch.setenv("QUIRE_REDIS_URL", "redis://other:1/0")
    monkeypatch.setenv("QUIRE_REDIS_URL_FILE", str(tmp_path / "url"))
    assert ProcessSettings.from_environment().redis_url == URL
    assert named_redis() == URL


def test_without_either_no_redis_is_named() -> None:
    assert named_redis() is None
    assert ProcessSettings.from_environment().redis_url == "redis://127.0.0.1:6379/0"


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compose file passes on what nobody has set."""
    for name in ("QUIRE_SECRET_FILE", "QUIRE_LEASE_SECONDS", "QUIRE_TRACE_TENANTS"):
        monkeypatch.setenv(name, "")
    assert ProcessSettings.read() == ProcessSettings()
    assert ProcessSettings.read().secret_file is None


def test_certificates_are_part_of_the_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "our ca.pem"
    path.touch()
    monkeypatch.setenv("QUIRE_REDIS_URL", "rediss://redis:6379/0?ssl_certfile=own.pem")
    monkeypatch.setenv("QUIRE_REDIS_CA_FILE", str(path))
    expected = f"rediss://redis:6379/0?ssl_certfile=own.pem&ssl_ca_certs={str(path).replace('/', '%2F')}"
    assert ProcessSettings.from_environment().redis_url == expected.replace(" ", "+")


def test_sentinels_may_lead_to_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "rediss+sentinel://user:secret@one:26379,two:26379/primary/0"
    monkeypatch.setenv("QUIRE_REDIS_URL", url)
    assert ProcessSettings.from_environment().redis_url == url
    (tmp_path / "ca.pem").touch()
    monkeypatch.setenv("QUIRE_REDIS_CA_FILE", str(tmp_path / "ca.pem"))
    assert ProcessSettings.from_environment().redis_url.startswith(f"{url}?ssl_ca_certs=")


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        *(
            ({"REDIS_URL": url}, "QUIRE_REDIS_URL: is no URL of Redis, such as redis://127.0.0.1:6379/0; ")
            for url in (
                "http://:secret@host",
                "redis://:secret#x@127.0.0.1:8240/0",
                "redis://:12/secret@127.0.0.1:8240/0",
                "redis://:12#secret@127.0.0.1:8240/0",
                "redis:/:secret@host",
                ":secret@host:1",
                "redis://::1:8240/0",
                "redis://host:secret/0",
                "redis://:secret@host?socket_timeout=abc",
                "redis+sentinel://:secret@host:26379",
                "redis+sentinel://:sec#ret@host:26379/primary",
                "REDISS://:secret@host",
                " rediss://:secret@host",
            )
        ),
        ({"REDIS_URL_FILE": "/no/such"}, "QUIRE_REDIS_URL_FILE=/no/such: No such file or directory"),
        ({"REDIS_URL_FILE": "/bin/sh"}, "QUIRE_REDIS_URL_FILE=/bin/sh: is no text"),
        (
            {"REDIS_URL": "rediss://host", "REDIS_CA_FILE": "/no/such"},
            "QUIRE_REDIS_CA_FILE=/no/such: No such file",
        ),
        ({"REDIS_URL": URL, "REDIS_CA_FILE": __file__}, "QUIRE_REDIS_CA_FILE is for a Redis over TLS"),
        ({"REDIS_URL": URL, "SECRET_FILE": "/no/such"}, "QUIRE_SECRET_FILE=/no/such: No such file"),
        ({"REDIS_URL": URL, "SECRET_FILE": "/dev/null"}, "QUIRE_SECRET_FILE=/dev/null: has less than 32"),
    ],
)
def test_a_bad_one_is_one_line_without_a_password(
    environment: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(f"QUIRE_{name}", value)
    with pytest.raises(SystemExit) as ended:
        ProcessSettings.from_environment()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(said)
    assert "secret" not in line
    with pytest.raises(UsageError) as refused:
        named_redis()
    assert str(refused.value) == line


def test_a_secret_is_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ProcessSettings.from_environment().secret == b""
    (tmp_path / "secret").write_text("0123456789abcdef" * 4 + "\n")
    monkeypatch.setenv("QUIRE_SECRET_FILE", str(tmp_path / "secret"))
    settings = ProcessSettings.from_environment()
    assert settings.secret == b"0123456789abcdef" * 4
    assert "0123456789abcdef" not in repr(settings)


class Sized(ProcessSettings):
    memory: ByteSize = ByteSize(0)


@pytest.mark.parametrize("value", ["abc", "4 elephants"])
def test_a_size_that_is_none_says_how_one_is_written(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_MEMORY", value)
    with pytest.raises(UsageError) as refused:
        Sized.read()
    assert str(refused.value) == f"QUIRE_MEMORY={value}: is no size, such as 512MiB or 4GiB"
