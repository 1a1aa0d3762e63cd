"""Each image that reads models has a cache that it may write, in the compose file and in the chart.

What a GGUF file, or a directory without a tokenizer.json, lacks of a model directory is made there
(`ops/model_directory/made_directory.py`).
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import chart
from tests.support.chart import ROOT, SIZES, rendered
from tests.unit.repository.test_chart import containers, environment, needs_helm

DOCKERFILE = (ROOT / "ops/images/Dockerfile").read_text(encoding="utf-8")
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))[
    "services"
]
READERS = sorted(
    name for name, service in SERVICES.items() if "QUIRE_MODEL" in service.get("environment", {})
)


def cache_of(image: str) -> Path:
    """Where an image keeps what it makes; without XDG_CACHE_HOME it is in the home."""
    (stage,) = re.findall(
        rf"^FROM runtime AS {image}$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL
    )
    return Path(*re.findall(r"^ENV XDG_CACHE_HOME=(\S+)$", stage, re.MULTILINE) or ["/home/quire/.cache"])


def is_in(path: Path, places: Iterable[str]) -> bool:
    return any(path.is_relative_to(place) for place in places)


def test_three_images_read_models() -> None:
    assert READERS == ["tokenizer", "worker", "worker-gpu"]


@pytest.mark.parametrize("name", READERS)
def test_a_container_of_the_compose_file_may_write_its_cache(name: str) -> None:
    service = SERVICES[name]
    assert "XDG_CACHE_HOME" not in service["environment"]
    mounts = [volume.rsplit(":", 2) for volume in service["volumes"]]
    writable = [target for _, target, mode in mounts if mode == "rw"]
    writable += [place.partition(":")[0] for place in service["tmpfs"]]
    assert is_in(cache_of(service["build"]["target"]), writable)


@needs_helm
@pytest.mark.parametrize("size", [None, *SIZES], ids=lambda size: size.stem if size else "values")
def test_a_container_of_the_chart_may_write_its_cache(size: Path | None) -> None:
    made = containers(rendered(chart.values(size) if size else {}))
    readers = [container for _, _, container in made if "QUIRE_MODEL" in environment(container)]
    assert readers
    for container in readers:
        assert "XDG_CACHE_HOME" not in environment(container)
        writable = [one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")]
        image = re.sub(r".*quire-|:.*", "", container["image"])
        assert is_in(cache_of(image), writable), container["name"]
