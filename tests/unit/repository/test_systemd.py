"""The units of systemd: what they start exists, what they set is read, and systemd takes them."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ops.launcher.acl import CHAIN
from ops.runtime.settings import ProcessSettings
from tests.unit.repository.test_docs import known_settings

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "ops" / "systemd"
UNITS = sorted(path.name for path in FOLDER.glob("*.service"))
MOST_EXPOSED = 2.0
"""Of 10, as `systemd-analyze security` counts what a unit may do. A unit that sets nothing has 9.6."""


def entries(unit: str) -> list[tuple[str, str]]:
    """Keys and values of a unit, in their order."""
    found = re.findall(r"^(\w+)=(.*)$", (FOLDER / unit).read_text(encoding="utf-8"), re.MULTILINE)
    return [(key, value) for key, value in found]


def values(unit: str, key: str) -> list[str]:
    return [value for name, value in entries(unit) if name == key]


def test_there_is_a_unit_for_each_service_and_one_for_all() -> None:
    assert sorted(re.sub(r"@?\.service", "", unit) for unit in UNITS) == sorted(
        ["quire", *(f"quire-{service}" for service in CHAIN)]
    )


@pytest.mark.parametrize("unit", UNITS)
def test_what_it_starts_exists(unit: str) -> None:
    (command,) = values(unit, "ExecStart")
    if unit == "quire.service":
        assert command == "/opt/quire/bin/quire up"
    else:
        python, option, module = command.split()
        assert (python, option) == ("/opt/quire/bin/python", "-m")
        assert find_spec(f"{module}.__main__")


@pytest.mark.parametrize("unit", UNITS)
def test_it_sets_what_is_read(unit: str) -> None:
    named = re.findall(r"\bQUIRE_\w+", " ".join(values(unit, "Environment")))
    assert named
    assert set(named) <= known_settings()


@pytest.mark.parametrize("service", CHAIN)
def test_a_service_has_its_own_user_of_redis(service: str) -> None:
    unit = next(name for name in UNITS if name.startswith(f"quire-{service}"))
    folder = "/etc/quire/secrets"
    credentials = [f"redis-url:{folder}/{service}.url", f"secret:{folder}/secret"]
    assert values(unit, "LoadCredential") == credentials
    assert values(unit, "User") == [f"quire-{service}"]


@pytest.mark.parametrize("unit", UNITS)
def test_it_gives_more_time_than_the_process_takes_to_stop(unit: str) -> None:
    (seconds,) = values(unit, "TimeoutStopSec")
    assert float(seconds) >= ProcessSettings.model_fields["stop_seconds"].default + 10


@pytest.mark.parametrize("unit", UNITS)
def test_a_bad_setting_is_not_tried_again(unit: str) -> None:
    assert values(unit, "RestartPreventExitStatus") == ["2"]


@pytest.mark.parametrize("unit", [unit for unit in UNITS if re.search(r"quire\.|tokenizer|worker", unit)])
def test_a_hub_that_was_asked_too_often_is_not_asked_every_second(unit: str) -> None:
    (seconds,) = values(unit, "RestartSec")
    assert float(seconds) >= 5


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as on a machine that has what they start."""
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8")
        (tmp_path / path.name).write_text(re.sub(r"/opt/quire/bin/\w+", sys.executable, text))
    return tmp_path


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze (Debian: systemd)")
@pytest.mark.parametrize("unit", [*UNITS, "quire.target"])
def test_systemd_takes_it(installed: Path, unit: str) -> None:
    command = ["systemd-analyze", "verify", "--man=no", installed / unit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    about_ours = [line for line in done.stderr.splitlines() if "quire" in line]
    assert (done.returncode, about_ours) == (0, [])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze (Debian: systemd)")
@pytest.mark.parametrize("unit", UNITS)
def test_it_may_do_little(installed: Path, unit: str) -> None:
    command = ["systemd-analyze", "security", "--no-pager", "--offline=yes", installed / unit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= MOST_EXPOSED
