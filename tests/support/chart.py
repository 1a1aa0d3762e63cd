"""The Helm chart of the repository, rendered by Helm's own library."""

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "ops" / "helm" / "quire"
SIZES = sorted((ROOT / "ops" / "helm" / "sizes").glob("*.yaml"))
NAMESPACE, RELEASE = "serving", "r"

Manifest = dict[str, Any]


def values(path: Path) -> Manifest:
    loaded: Manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def schema() -> Manifest:
    loaded: Manifest = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return loaded


def rendered(given: Manifest, release: str = RELEASE) -> list[Manifest]:
    """All objects that the chart makes. Raises Helm's errors."""
    from helm_python import Chart

    with Chart.load(CHART) as chart:
        texts = chart.render(given, name=release, namespace=NAMESPACE).values()
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] in kinds]


def pod_of(manifest: Manifest) -> Manifest:
    """The pods' `spec` of a Deployment or StatefulSet."""
    pod: Manifest = manifest["spec"]["template"]["spec"]
    return pod


def matches(selector: Manifest, labels: Manifest) -> bool:
    """Whether a selector (`matchLabels`, and `matchExpressions` with `In`) takes these labels."""
    listed = selector.get("matchExpressions", [])
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(one["key"]) in one["values"] for one in listed
    )
