"""The manifests of docker/kubernetes/ against Kubernetes' own schemas, and against the server that they start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from served_flags import ROOT, configs

from engine.stats import EngineStats
from server.config import ServerConfig
from server.observability.metrics import Metrics
from server.routes import health

DIRECTORY = ROOT / "docker" / "kubernetes"
MANIFESTS = [path for path in sorted(DIRECTORY.glob("*/*.yaml")) if path.name not in ("kustomization.yaml", "adapter-values.yaml")]
TEMPLATE = (ROOT / "docker" / "nginx" / "octavo.conf.template").read_text()


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DIRECTORY / name).read_text())
    return found


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    template: dict[str, Any] = load("base/deployment.yaml")["spec"]["template"]
    return template


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["spec"]["containers"]
    return only


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    path = tmp_path / "octavo.yaml"
    path.write_text(load("base/config.yaml")["data"]["octavo.yaml"])
    return path


def patched(place: str) -> dict[str, Any]:
    """The container as `place` (cpu or gpu) changes it."""
    (changed,) = load(f"{place}/deployment.yaml")["spec"]["template"]["spec"]["containers"]
    return changed


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_kubernetes_knows_every_field(path: Path) -> None:
    manifest = yaml.safe_load(path.read_text())
    if "monitoring.coreos.com" in manifest["apiVersion"]:
        pytest.skip("of the Prometheus operator, whose schemas are not Kubernetes'")
    if path.name == "deployment.yaml" and path.parent.name != "base":
        whole = load("base/deployment.yaml")
        whole["spec"]["template"]["spec"]["containers"][0] |= patched(path.parent.name)
        manifest = whole
    kubernetes_validate.validate(manifest, "1.34", strict=True)


@pytest.mark.parametrize("place", ["base", "cpu", "gpu"])
def test_a_kustomization_names_files_that_are_there(place: str) -> None:
    kustomization = load(f"{place}/kustomization.yaml")
    for name in [*kustomization["resources"], *(patch["path"] for patch in kustomization.get("patches", ()))]:
        assert (DIRECTORY / place / name).exists(), name
    if place == "base":
        assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in (DIRECTORY / place).glob("*.yaml")}
    else:
        patch = load(f"{place}/deployment.yaml")
        assert (patch["kind"], patch["metadata"]["name"]) == ("Deployment", "octavo")
        (image,) = kustomization["images"]
        assert image["name"] == load("base/deployment.yaml")["spec"]["template"]["spec"]["containers"][0]["image"]


@pytest.mark.parametrize("place", ["base", "cpu", "gpu"])
def test_the_arguments_are_settings_that_can_work(place: str, settings_file: Path, container: dict[str, Any]) -> None:
    merged = container if place == "base" else container | patched(place)
    engine, server = configs(merged["args"], {"/etc/octavo/octavo.yaml": settings_file})
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert server.api_keys_file is not None
    assert {"/etc/octavo", str(Path(server.api_keys_file).parent), "/cache", "/tmp"} == mounts
    if place == "cpu":
        assert str(engine.num_threads) == merged["resources"]["limits"]["cpu"]
        assert engine.kv_cache_memory == 2 << 30
    if place == "gpu":
        assert engine.device == "cuda"
        assert merged["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_a_pod_that_ends_has_the_time_that_its_requests_are_given(
    settings_file: Path, pod: dict[str, Any], container: dict[str, Any]
) -> None:
    _, server = configs(["--config=/octavo.yaml"], {"/octavo.yaml": settings_file})
    (_, sleep) = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > server.grace_period + int(sleep) + 5


def test_probes_ask_for_what_the_server_answers(container: dict[str, Any]) -> None:
    paths = {route.path for route in health.router.routes}  # type: ignore[attr-defined]
    asked = {probe: container[probe]["httpGet"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert [asked[probe]["path"] for probe in asked] == ["/ready", "/ready", "/health"]
    assert {get["path"] for get in asked.values()} <= paths
    (port,) = container["ports"]
    assert port["containerPort"] == ServerConfig().port
    assert {get["port"] for get in asked.values()} == {port["name"]}


def test_whatever_selects_pods_selects_these(pod: dict[str, Any]) -> None:
    labels = pod["metadata"]["labels"].items()
    for name, keys in {
        "deployment": ("selector", "matchLabels"),
        "service": ("selector",),
        "disruption": ("selector", "matchLabels"),
        "network": ("podSelector", "matchLabels"),
    }.items():
        selector = load(f"base/{name}.yaml")["spec"]
        for key in keys:
            selector = selector[key]
        assert selector.items() <= labels, name
    service = load("base/service.yaml")
    monitor = load("monitoring/servicemonitor.yaml")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {endpoint["port"] for endpoint in monitor["endpoints"]} <= {port["name"] for port in service["spec"]["ports"]}
    (path,) = load("base/ingress.yaml")["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": service["metadata"]["name"], "port": {"name": "http"}}
    assert load("base/autoscaler.yaml")["spec"]["scaleTargetRef"]["name"] == load("base/deployment.yaml")["metadata"]["name"]
    assert [entry["port"] for entry in load("base/network.yaml")["spec"]["ingress"][0]["ports"]] == [ServerConfig().port]


def test_pods_are_scaled_by_a_metric_that_there_is() -> None:
    (metric,) = load("base/autoscaler.yaml")["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert f"\n{name} " in Metrics(EngineStats).render().decode()
    (rule,) = load("monitoring/adapter-values.yaml")["rules"]["custom"]
    assert rule["seriesQuery"].startswith(name + "{")


def test_the_ingress_does_as_nginx_does_in_compose() -> None:
    annotations = load("base/ingress.yaml")["metadata"]["annotations"]
    own = {name.rpartition("/")[2]: value for name, value in annotations.items()}
    assert own["proxy-body-size"] == f"{ServerConfig().max_body_size >> 20}m"
    for setting in ("proxy-buffering", "proxy-next-upstream", "proxy-next-upstream-tries"):
        (directive,) = re.findall(rf"^ *{setting.replace('-', '_')} (.*);", TEMPLATE, re.MULTILINE)
        assert own[setting] == directive, setting
    for part in own["upstream-hash-by"].strip("$").split("$"):
        assert f"${part}" in TEMPLATE


def test_a_pod_may_do_nothing_but_serve(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert pod["spec"]["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod["spec"]["automountServiceAccountToken"]
    assert load("base/namespace.yaml")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
