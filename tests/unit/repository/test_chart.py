"""The Helm chart: what it makes is valid, complete, and of this repository (`make chart` has Helm)."""

import re
from collections import Counter
from importlib.util import find_spec
from typing import Any

import jsonschema_rs
import pytest
import yaml

from ops.launcher.acl import CHAIN
from ops.runtime.metric_names import BY_NAME
from ops.runtime.settings import ProcessSettings
from tests.support import chart
from tests.support.chart import CHART, RELEASE, ROOT, SIZES, Manifest, matches, of_kind, pod_of, rendered
from tests.unit.repository.test_changelog import VERSION
from tests.unit.repository.test_docs import known_settings

KUBERNETES = "1.37"
HELM = all(find_spec(name) for name in ("helm_python", "kubernetes_validate"))
needs_helm = pytest.mark.skipif(not HELM, reason="no Helm (make chart)")
OF_OTHERS = {"keda.sh/v1alpha1", "inference.networking.k8s.io/v1", "gateway.networking.k8s.io/v1"}
"""Kinds of resources that are not Kubernetes' own, whose schemas are not among its."""


def test_it_has_this_version() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (VERSION, VERSION)


def test_the_schema_takes_the_values_and_the_sizes() -> None:
    checker = jsonschema_rs.validator_for(chart.schema())
    defaults = chart.values(CHART / "values.yaml")
    assert len(SIZES) == 3
    for given in ({}, *map(chart.values, SIZES)):
        checker.validate(defaults | given)
    assert chart.schema()["properties"].keys() - {"global"} == defaults.keys()


MODEL = {"name": "a", "model": "org/a", "workers": [{"pool": "p"}]}


@pytest.mark.parametrize(
    "given",
    [
        {"models": []},
        {"modles": [MODEL]},
        {"models": [MODEL | {"name": "Not-A-Label"}]},
        {"models": [MODEL | {"model": "/elsewhere"}]},
        {"models": [MODEL | {"workers": [{"pool": "p", "device": "cuda"}]}]},
        {"models": [MODEL | {"workers": [{"pool": "p", "gpus": 1}]}]},
        {"models": [MODEL | {"workers": [{"pool": "p", "autoscaling": {"min": 1}}]}]},
        {"env": {"not a name": 1}},
        {"traces": "http://no-port"},
        {"metricsPort": 70000},
    ],
)
def test_the_schema_refuses_mistakes(given: Manifest) -> None:
    checker = jsonschema_rs.validator_for(chart.schema())
    good = chart.values(CHART / "values.yaml")
    assert checker.is_valid(good | {"models": [MODEL]})
    assert not checker.is_valid(good | given)


def test_settings_that_it_names_exist() -> None:
    texts = [path.read_text() for path in (*CHART.rglob("*.*"), *SIZES)]
    named = set(re.findall(r"\b(QUIRE_[A-Z_]+[A-Z])\b", "".join(texts)))
    assert len(named) > 10
    assert named <= known_settings()


@pytest.fixture(scope="module", params=[None, *SIZES], ids=["values", *(path.stem for path in SIZES)])
def made(request: pytest.FixtureRequest) -> list[Manifest]:
    """All objects of one size."""
    return rendered(chart.values(request.param) if request.param else {})


def containers(made: list[Manifest]) -> list[tuple[str, Manifest, Manifest]]:
    """Each process's name, its pods' `spec` and its container."""
    found = [(pod_of(one), one) for one in of_kind(made, "Deployment", "StatefulSet")]
    return [(container["name"], pod, container) for pod, _ in found for container in pod["containers"]]


def environment(container: Manifest) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container.get("env", [])}


@needs_helm
def test_kubernetes_takes_it(made: list[Manifest]) -> None:
    import kubernetes_validate

    assert len(made) > 10
    for one in made:
        if one["apiVersion"] not in OF_OTHERS:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    names = Counter((one["kind"], one["metadata"]["name"]) for one in made)
    assert max(names.values()) == 1


@needs_helm
def test_helm_has_nothing_to_say() -> None:
    from helm_python import lint

    report = lint(CHART, strict=True)
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > 1] == []


@needs_helm
def test_each_process_is_one_that_there_is(made: list[Manifest]) -> None:
    targets = set(
        re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "ops/images/Dockerfile").read_text(), re.MULTILINE)
    )
    found = {name for name, _, _ in containers(made)} - {"redis"}
    assert found == {*CHAIN, "operator"}
    for name, _, container in containers(made):
        if name == "redis":
            continue
        target, _, tag = container["image"].removeprefix("quire-").partition(":")
        assert (target in targets, tag) == (True, VERSION)
        if name != "operator":
            python, option, module = container["command"]
            assert (python, option) == ("python", "-m")
            assert find_spec(f"{module}.__main__")
            assert set(environment(container)) & {"QUIRE_REDIS_URL"} == set()


@needs_helm
def test_pods_may_do_little(made: list[Manifest]) -> None:
    for _, pod, container in containers(made):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


@needs_helm
def test_a_process_sees_its_own_user_of_redis_alone(made: list[Manifest]) -> None:
    for name, pod, _ in containers(made):
        (secret,) = [one["secret"]["items"] for one in pod["volumes"] if "secret" in one]
        keys = {one["key"] for one in secret}
        assert keys == {"redis": {"users.acl"}, "operator": {"operator.url"}}.get(
            name, {f"{name}.url", "secret"}
        )


@needs_helm
def test_a_process_has_time_to_end(made: list[Manifest]) -> None:
    for name, pod, container in containers(made):
        if name in CHAIN:
            before = int(
                (container.get("lifecycle") or {"preStop": NO_SLEEP})["preStop"]["exec"]["command"][1]
            )
            seconds = float(environment(container)["QUIRE_STOP_SECONDS"])
            assert pod["terminationGracePeriodSeconds"] >= before + seconds + 5


NO_SLEEP: dict[str, Any] = {"exec": {"command": ["sleep", "0"]}}


@needs_helm
def test_probes_ask_what_answers(made: list[Manifest]) -> None:
    paths = set(re.findall(r'"(/health/\w+)"', (ROOT / "gateway/api/system/health.py").read_text()))
    for name, pod, container in containers(made):
        if name == "gateway":
            probes = [
                container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")
            ]
            assert set(probes) <= paths
        elif name in CHAIN:
            assert "livenessProbe" not in container  # it would end all processes when Redis is away
            command = container["readinessProbe"]["exec"]["command"]
            assert command == ["python", "-m", "ops.runtime.health", name, "--end-after", "3"]
            assert pod["shareProcessNamespace"] is True  # or the process is number 1, which cannot be killed


@needs_helm
def test_a_service_is_reached_by_each_of_its_names() -> None:
    made = rendered({"gateway": {"allowedHosts": ["api.example.com"]}})
    (gateway,) = [container for name, _, container in containers(made) if name == "gateway"]
    own = f"{RELEASE}-gateway"
    names = [own, *(f"{own}.{chart.NAMESPACE}{end}" for end in ("", ".svc", ".svc.cluster.local"))]
    assert environment(gateway)["QUIRE_ALLOWED_HOSTS"].split(",") == ["api.example.com", *names]


@needs_helm
def test_nodes_can_be_emptied_one_pod_at_a_time(made: list[Manifest]) -> None:
    budgets = of_kind(made, "PodDisruptionBudget")
    for one in of_kind(made, "Deployment"):
        labels = one["spec"]["template"]["metadata"]["labels"]
        over = [budget for budget in budgets if matches(budget["spec"]["selector"], labels)]
        assert len(over) == (one["spec"]["template"]["spec"]["containers"][0]["name"] in CHAIN)


@needs_helm
def test_selectors_take_their_own_pods_alone(made: list[Manifest]) -> None:
    workloads = of_kind(made, "Deployment", "StatefulSet")
    for one in workloads:
        taken = [
            other["metadata"]["name"]
            for other in workloads
            if matches(one["spec"]["selector"], other["spec"]["template"]["metadata"]["labels"])
        ]
        assert taken == [one["metadata"]["name"]]


@needs_helm
def test_what_is_scaled_exists_and_by_metrics_that_exist(made: list[Manifest]) -> None:
    deployments = {one["metadata"]["name"]: one["spec"] for one in of_kind(made, "Deployment")}
    scaled = of_kind(made, "ScaledObject")
    for one in scaled:
        # With a number of its own, each upgrade would undo what KEDA has done.
        assert "replicas" not in deployments[one["spec"]["scaleTargetRef"]["name"]]
        assert len(one["spec"]["triggers"]) == 2
        for trigger in one["spec"]["triggers"]:
            named = re.findall(r"(?:vllm|quire):\w+", trigger["metadata"]["query"])
            assert named
            assert set(named) <= BY_NAME.keys()
            assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert [name for name, spec in deployments.items() if "replicas" not in spec] == [
        one["spec"]["scaleTargetRef"]["name"] for one in scaled
    ]


def reaches(made: list[Manifest], source: str, target: str) -> bool:
    """Whether policies let pods of one component connect to pods of another, both of this release."""
    policies = [one["spec"] for one in of_kind(made, "NetworkPolicy")]
    base = {"app.kubernetes.io/name": "quire", "app.kubernetes.io/instance": RELEASE}
    ends = [base | {"app.kubernetes.io/component": component} for component in (source, target)]
    allowed = []
    for side, key, own, other in (("egress", "to", *ends), ("ingress", "from", *reversed(ends))):
        rules = [rule for one in policies if matches(one["podSelector"], own) for rule in one.get(side, [])]
        open_ports = {"redis": 6379, "gateway": 8000}.get(target, 1)
        allowed.append(
            any(
                open_ports in [port["port"] for port in rule["ports"]]
                and (
                    key not in rule or any(matches(peer.get("podSelector", {}), other) for peer in rule[key])
                )
                for rule in rules
            )
        )
    return all(allowed)


@needs_helm
def test_processes_reach_redis_and_nothing_of_each_other() -> None:
    made = rendered({})
    components = [*CHAIN, "operator", "redis"]
    assert [one for one in components if reaches(made, one, "redis")] == [*CHAIN, "operator"]
    assert not [
        (one, other)
        for one in components
        for other in components
        if other != "redis" and reaches(made, one, other)
    ]


@needs_helm
def test_processes_reach_what_else_they_are_said_to() -> None:
    """As Sentinels of a Redis, or a proxy."""
    sentinels = {"ports": [{"port": 26379}], "to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}
    made = rendered({"networkPolicies": {"egress": [sentinels]}, "redis": {"external": True}})
    found = [one for one in of_kind(made, "NetworkPolicy") if sentinels in one["spec"].get("egress", [])]
    assert [one["metadata"]["name"] for one in found] == [f"{RELEASE}-processes"]
    names = [{port["port"] for port in rule["ports"]} for rule in found[0]["spec"]["egress"]]
    assert {53, 5353} in names, "OpenShift's DNS listens at another port than its Service"


@needs_helm
def test_each_process_shows_its_metrics_at_the_port() -> None:
    made = rendered({"metricsPort": 9101})
    shown = {name: one["ports"] for name, _, one in containers(made) if name in CHAIN}
    assert all(ports[-1] == {"name": "metrics", "containerPort": 9101} for ports in shown.values())
    assert {
        environment(one).get("QUIRE_METRICS_ADDRESS") for name, _, one in containers(made) if name in CHAIN
    } == {"0.0.0.0:9101"}
    (policy,) = [
        one for one in of_kind(made, "NetworkPolicy") if one["metadata"]["name"] == f"{RELEASE}-metrics"
    ]
    assert policy["spec"]["ingress"] == [{"ports": [{"port": 9101}]}]
    labels = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"]["metadata"][
            "labels"
        ]
        for one in of_kind(made, "Deployment")
    }
    assert {name for name, own in labels.items() if matches(policy["spec"]["podSelector"], own)} == {*CHAIN}


@needs_helm
def test_a_scheduler_records_where_it_may_write() -> None:
    made = rendered({"defaults": {"scheduler": {"recordings": {"emptyDir": {"sizeLimit": "1Gi"}}}}})
    for name, pod, container in containers(made):
        places = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        recordings = environment(container).get("QUIRE_RECORDINGS")
        assert recordings == ("/recordings" if name == "scheduler" else None)
        if recordings:
            volume = {"name": places[recordings], "emptyDir": {"sizeLimit": "1Gi"}}
            assert volume in pod["volumes"]


@needs_helm
def test_a_volume_has_one_source(made: list[Manifest]) -> None:
    for _, pod, _ in containers(made):
        assert [one for one in pod["volumes"] if len(one) != 2] == []


@needs_helm
def test_a_volume_of_a_model_takes_the_place_of_the_default() -> None:
    shared, own = {"persistentVolumeClaim": {"claimName": "shared"}}, {"nfs": {"server": "s", "path": "/"}}
    defaults = {"hubCache": shared, "volume": shared, "scheduler": {"recordings": shared}}
    given = {"hubCache": own, "volume": own, "scheduler": {"recordings": own}}
    made = rendered({"defaults": defaults, "models": [MODEL | given, MODEL | {"name": "b"}]})
    for one in of_kind(made, "Deployment"):
        wanted = own if one["metadata"]["labels"].get("quire/model") == "a" else shared
        for volume in pod_of(one)["volumes"]:
            if (name := volume.pop("name")) in ("hub", "model", "recordings"):
                assert volume == wanted, name


@needs_helm
def test_gpus_are_asked_for_and_ranks_match() -> None:
    made = rendered(chart.values(ROOT / "ops/helm/sizes/large.yaml"))
    (worker,) = [container for name, _, container in containers(made) if name == "worker"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert environment(worker)["QUIRE_TENSOR_PARALLEL"] == "4"
    assert environment(worker)["QUIRE_LEASE_SECONDS"] == "6"
    assert not of_kind(made, "StatefulSet")  # Redis is another's
    assert {one["kind"] for one in made} >= {"InferencePool", "HTTPRoute", "ScaledObject"}


@needs_helm
@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, True),
        ({"resources": {"requests": {"cpu": "3500m"}}}, True),
        ({"resources": {"limits": {"cpu": "8"}}}, False),
        ({"env": {"QUIRE_THREADS": 2}}, False),
        ({"device": "cuda", "gpus": 1}, False),
    ],
)
def test_a_worker_on_cpus_has_a_thread_for_each_processor_that_it_asks_for(
    given: Manifest, asked: bool
) -> None:
    made = rendered({"models": [MODEL | {"workers": [{"pool": "p", **given}]}]})
    for name, _, container in containers(made):
        sources = [
            one["valueFrom"]
            for one in container.get("env", [])
            if one["name"] == "QUIRE_THREADS" and "value" not in one
        ]
        expected = [{"resourceFieldRef": {"resource": "requests.cpu"}}] if asked and name == "worker" else []
        assert sources == expected
        names = [one["name"] for one in container.get("env", [])]
        assert len(set(names)) == len(names)


@needs_helm
@pytest.mark.parametrize("without", ["limits", "requests"])
@pytest.mark.parametrize("default", [False, True])
def test_a_pool_needs_no_resources(without: str, default: bool) -> None:
    """Null is how Helm takes a default away."""
    resources = {"resources": {without: None}}
    given = {"defaults": {"worker": resources}} if default else {}
    made = rendered(
        given | {"models": [MODEL | {"workers": [{"pool": "p", **({} if default else resources)}]}]}
    )
    (worker,) = [container for name, _, container in containers(made) if name == "worker"]
    assert not worker["resources"].get(without)
    assert ("QUIRE_THREADS" in environment(worker)) is (without == "limits")
    rendered({"defaults": {"worker": {"resources": None}}, "models": [MODEL]})


@needs_helm
def test_releases_with_long_names_have_nothing_in_common() -> None:
    given = {"inferencePool": {"enabled": True}}
    long = "a-release-with-a-very-long-name-of-production"
    made = [rendered(given, release=name) for name in (long, long[:-1], "x" * 53, "r" * 30)]
    named = [{(one["kind"], one["metadata"]["name"]) for one in each} for each in made]
    assert not set.intersection(named[0], named[1])
    gateways = [name for each in named for kind, name in each if (kind, name[-8:]) == ("Service", "-gateway")]
    assert [len(name) for name in gateways] == [30 + 8] * 4
    assert ("Service", f"{'r' * 30}-redis") in named[3]


@needs_helm
def test_a_redis_of_others_over_tls_is_known_by_a_certificate_of_the_secret() -> None:
    for values in ({}, {"redis": {"external": True, "port": 6380, "caKey": "ca.crt"}}):
        for name, pod, container in containers(rendered(values)):
            if name == "redis":
                continue
            (items,) = [one["secret"]["items"] for one in pod["volumes"] if "secret" in one]
            (place,) = [one["mountPath"] for one in container["volumeMounts"] if one["name"] == "secrets"]
            files = {f"{place}/{one['path']}" for one in items if one["key"] == "ca.crt"}
            assert files == {environment(container).get("QUIRE_REDIS_CA_FILE")} - {None}
            assert bool(files) is bool(values)


@needs_helm
def test_images_are_as_large_as_the_slowest_worker_of_a_model_has_time_for() -> None:
    def tokens(**values: Any) -> set[tuple[str, str | None]]:
        pools = [{"pool": "gpu", "device": "cuda", "gpus": 1}]
        mixed = [*pools, {"pool": "cpu"}]
        models = [
            {"name": name, "model": "org/name", "workers": workers}
            for name, workers in (("fast", pools), ("mixed", mixed))
        ]
        made = rendered({"models": models} | values)
        return {
            (manifest["metadata"]["labels"]["quire/model"], environment(container).get("QUIRE_IMAGE_TOKENS"))
            for manifest in of_kind(made, "Deployment")
            if manifest["metadata"]["labels"]["app.kubernetes.io/component"] in ("tokenizer", "worker")
            for container in pod_of(manifest)["containers"]
        }

    assert tokens() == {("fast", "4096"), ("mixed", "1024")}
    assert tokens(env={"QUIRE_IMAGE_TOKENS": 2048}) == {("fast", "2048"), ("mixed", "2048")}


@needs_helm
def test_a_setting_of_a_component_goes_before_one_of_all() -> None:
    def is_set(**settings: float) -> Manifest:
        return {"env": settings}

    given = {
        "env": {"QUIRE_LEASE_SECONDS": 6, "QUIRE_LOG_FORMAT": "text"},
        "gateway": is_set(QUIRE_LEASE_SECONDS=9),
    }
    found = {name: environment(container) for name, _, container in containers(rendered(given))}
    assert found["gateway"]["QUIRE_LEASE_SECONDS"] == "9"
    assert found["worker"]["QUIRE_LEASE_SECONDS"] == "6"
    assert {found[name]["QUIRE_LOG_FORMAT"] for name in CHAIN} == {"text"}
    assert (
        float(found["worker"]["QUIRE_STOP_SECONDS"]) == ProcessSettings.model_fields["stop_seconds"].default
    )


@needs_helm
def test_a_setting_is_passed_on_as_it_is_written() -> None:
    """Zeros, empty ones and large numbers, too."""
    given = {
        "env": {"QUIRE_IMAGE_TOKENS": 0, "QUIRE_TRACE_RATE": 0.5, "QUIRE_LOG_FORMAT": ""},
        "gateway": {
            "env": {"QUIRE_TRACE_RATE": 0, "QUIRE_FILES_BYTES": 1073741824, "QUIRE_STRICT_FIELDS": False}
        },
        "defaults": {"tokenizer": {"env": {"QUIRE_TRACE_SLOW_SECONDS": 2.5}}},
        "models": [
            MODEL | {"tokenizer": {"replicas": 0, "env": {"QUIRE_TRACE_SLOW_SECONDS": 0}}},
            MODEL
            | {"name": "b", "workers": [{"pool": "p", "replicas": 0, "env": {"QUIRE_MAX_SLOTS": 10**7}}]},
        ],
    }
    made = of_kind(rendered(given), "Deployment")
    found = {one["metadata"]["name"]: environment(pod_of(one)["containers"][0]) for one in made}
    replicas = {one["metadata"]["name"]: one["spec"]["replicas"] for one in made}
    gateway, tokenizer, worker = (
        found[f"{RELEASE}-{name}"] for name in ("gateway", "a-tokenizer", "b-worker-p")
    )
    assert gateway["QUIRE_TRACE_RATE"] == "0"
    assert gateway["QUIRE_FILES_BYTES"] == "1073741824"
    assert gateway["QUIRE_STRICT_FIELDS"] == "false"
    assert gateway["QUIRE_LOG_FORMAT"] == ""
    assert worker["QUIRE_IMAGE_TOKENS"] == tokenizer["QUIRE_IMAGE_TOKENS"] == "0"
    assert worker["QUIRE_TRACE_RATE"] == "0.5"
    assert worker["QUIRE_MAX_SLOTS"] == "10000000"
    assert tokenizer["QUIRE_TRACE_SLOW_SECONDS"] == "0"
    assert replicas[f"{RELEASE}-a-tokenizer"] == replicas[f"{RELEASE}-b-worker-p"] == 0


@needs_helm
def test_names_that_look_like_numbers_stay_text() -> None:
    import kubernetes_validate

    given = {
        "models": [{"name": "70", "model": "org/a", "workers": [{"pool": "4090"}]}],
        "secretName": "1e3",
        "hub": {"tokenSecret": "12"},
        "redis": {"storageClassName": "3"},
        "inferencePool": {"enabled": True, "endpointPicker": "7", "parentGateway": "8"},
    }
    for one in rendered(given, release="2026"):
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "2026"
        assert all(isinstance(text, str) for text in (one["metadata"]["name"], *labels.values()))
        if one["apiVersion"] not in OF_OTHERS:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
        elif one["kind"] == "InferencePool":
            assert (one["metadata"]["name"], one["spec"]["endpointPickerRef"]["name"]) == ("2026", "7")
        elif one["kind"] == "HTTPRoute":
            (rule,) = one["spec"]["rules"]
            assert (one["spec"]["parentRefs"][0]["name"], rule["backendRefs"][0]["name"]) == ("8", "2026")


def open_to(made: list[Manifest], peer: Manifest) -> set[int]:
    """Ports of gateways that policies open to pods: `peer` has labels that a selector of their own looks at.

    `podSelector`: labels of pods of the deployment's namespace; `namespaceSelector`: of all pods of another.
    """
    (labels,) = [
        one["spec"]["template"]["metadata"]["labels"]
        for one in of_kind(made, "Deployment")
        if one["metadata"]["labels"]["app.kubernetes.io/component"] == "gateway"
    ]
    policies = [one["spec"] for one in of_kind(made, "NetworkPolicy")]
    rules = [
        rule for one in policies if matches(one["podSelector"], labels) for rule in one.get("ingress", [])
    ]
    return {
        port["port"]
        for rule in rules
        for port in rule["ports"]
        if "from" not in rule
        or any(
            each.keys() == peer.keys() and matches(*each.values(), *peer.values()) for each in rule["from"]
        )
    }


@needs_helm
def test_prometheus_reaches_what_is_scaled_by_its_values(made: list[Manifest]) -> None:
    given = chart.values(CHART / "values.yaml")["prometheus"]
    namespace = given.split(".")[1]
    if of_kind(made, "ScaledObject"):
        ports = open_to(made, {"namespaceSelector": {"kubernetes.io/metadata.name": namespace}})
        assert ports == metrics_ports(made)


@needs_helm
def test_a_pool_has_the_gateways_of_all_deployments_of_the_namespace(made: list[Manifest]) -> None:
    for pool in of_kind(made, "InferencePool"):
        wanted = pool["spec"]["selector"]["matchLabels"].items()
        for one in of_kind(made, "Deployment", "StatefulSet"):
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert (wanted <= labels.items()) == (labels["app.kubernetes.io/component"] == "gateway")
        assert RELEASE not in dict(wanted).values()


@needs_helm
def test_a_picker_reaches_metrics_that_need_no_key(made: list[Manifest]) -> None:
    for pool in of_kind(made, "InferencePool"):
        ports = open_to(made, {"podSelector": {"inferencepool": pool["spec"]["endpointPickerRef"]["name"]}})
        assert ports == metrics_ports(made)
        assert len(ports) == 2


def metrics_ports(made: list[Manifest]) -> set[int]:
    """Ports at which gateways show the metrics of all; its Service has them, too."""
    (ports,) = [container["ports"] for name, _, container in containers(made) if name == "gateway"]
    (service,) = [one for one in of_kind(made, "Service") if one["metadata"]["name"] == f"{RELEASE}-gateway"]
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [one["name"] for one in ports]
    return {one["containerPort"] for one in ports}


@needs_helm
def test_a_pool_is_scaled_by_what_is_left_for_it() -> None:
    """By the deployment's own series, and without what the other pools of the model do."""
    scaled = {"pool": "p", "replicas": 2, "autoscaling": {"min": 1, "max": 4, "blockUse": 0.5}}

    def queries(*others: Manifest, **given: Any) -> list[str]:
        made = rendered({"models": [MODEL | {"workers": [scaled, *others]}]} | given)
        (one,) = of_kind(made, "ScaledObject")
        return [trigger["metadata"]["query"] for trigger in one["spec"]["triggers"]]

    waiting, used = queries()
    assert waiting == 'sum(max by (engine) (vllm:num_requests_waiting{model_name="a"}))'
    assert queries({"pool": "fixed", "replicas": 3}) == [waiting, f"{used} - 3 * 0.5"]
    told = queries(prometheusLabels={"deployment": "x"})
    assert told == [one.replace("{model", '{deployment="x",model') for one in (waiting, used)]
    with pytest.raises(Exception, match="one pool of a model can have autoscaling"):
        queries(scaled | {"pool": "q"})


@needs_helm
def test_an_image_may_be_of_another_version() -> None:
    """So that an upgrade may begin with the workers."""
    tags = {"worker": "9.9", "operator": "9.8"}
    found = {
        name: container["image"]
        for name, _, container in containers(rendered({"images": {"tag": "9", "tags": tags}}))
        if name != "redis"
    }
    assert found == {
        name: f"quire-{name}:{tags.get(name, '9')}"
        for name in ("gateway", "tokenizer", "scheduler", "worker", "operator")
    }
    assert rendered({"images": {"tags": None}}), "null is how Helm takes them away"


@needs_helm
def test_users_are_left_to_a_cluster_that_has_its_own() -> None:
    own = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))
    left = rendered({"securityContext": own, "redis": {"securityContext": own}})
    for made, users in (
        (rendered({}), {"redis": (999, 1000, 1000), "worker": (10001,) * 3}),
        (left, {"redis": (None,) * 3, "worker": (None,) * 3}),
    ):
        for name, pod, _ in containers(made):
            context = pod["securityContext"]
            assert tuple(map(context.get, own)) == users["redis" if name == "redis" else "worker"]
            assert context["runAsNonRoot"] is True
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}


@needs_helm
def test_every_image_may_be_of_a_registry_with_a_password() -> None:
    secrets = [{"name": "registry"}]
    made = rendered({"images": {"pullSecrets": secrets}})
    assert [pod["imagePullSecrets"] for _, pod, _ in containers(made)] == [secrets] * len(containers(made))
