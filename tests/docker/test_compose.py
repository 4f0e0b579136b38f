"""docker/compose.yaml, as Docker Compose itself reads it, without an engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml
from served_flags import ROOT, configs

from server.config import ServerConfig

DOCKER = ROOT / "docker"
COMPOSE = shutil.which("docker-compose", path=sysconfig.get_path("scripts")) or shutil.which("docker-compose")
PROFILES = ("cpu", "gpu", "two-gpus", "monitoring", "webui", "tracing")
SETTINGS = {"OCTAVO_API_KEY": "a-key", "GRAFANA_PASSWORD": "a-password"}
TEMPLATE = (DOCKER / "nginx" / "octavo.conf.template").read_text()

pytestmark = pytest.mark.skipif(COMPOSE is None, reason="needs Docker Compose, which pip installs on Linux (x86-64) with Python 3.11")


def compose(*arguments: str, overlay: str | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    files = [word for name in ("compose.yaml", overlay) if name is not None for word in ("-f", str(DOCKER / name))]
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")} | settings
    command = [str(COMPOSE), "--env-file", os.devnull, *files, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def read(*profiles: str, overlay: str | None = None, **settings: str) -> dict[str, Any]:
    """What Compose makes of compose.yaml, and of `overlay` behind it."""
    named = [word for profile in profiles for word in ("--profile", profile)]
    done = compose(*named, "config", "--format", "json", overlay=overlay, **(SETTINGS | settings))
    assert done.stdout, done.stderr  # what pip installs exits with 0 whatever happens
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    return read(*PROFILES)


@pytest.fixture(scope="module")
def services(everything: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = everything["services"]
    return found


@pytest.fixture(scope="module")
def octavos(services: dict[str, Any]) -> dict[str, Any]:
    return {name: service for name, service in services.items() if service["image"].startswith("octavo:")}


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("cpu", {"nginx", "octavo-1", "octavo-2"}),
        ("gpu", {"nginx", "octavo-gpu-1"}),
        ("two-gpus", {"nginx", "octavo-gpu-1", "octavo-gpu-2"}),
        ("monitoring", {"nginx", "prometheus", "grafana"}),
    ],
)
def test_a_profile_starts_what_it_says(profile: str, expected: set[str]) -> None:
    assert set(read(profile)["services"]) == expected


@pytest.mark.parametrize("name", SETTINGS)
def test_without_a_secret_nothing_starts_and_it_is_said_which(name: str) -> None:
    done = compose("--profile", "cpu", "config", **{other: value for other, value in SETTINGS.items() if other != name})
    assert not done.stdout
    assert name in done.stderr
    assert "set it in docker/.env" in done.stderr


def test_the_example_of_settings_names_every_setting() -> None:
    used = {name for path in DOCKER.glob("compose*.yaml") for name in re.findall(r"\$\{(\w+)", path.read_text())}
    named = set(re.findall(r"^#?([A-Z_]+)=", (DOCKER / ".env.example").read_text(), re.MULTILINE))
    assert named == used | {"COMPOSE_PROFILES"}


def test_every_file_that_is_mounted_is_there(everything: dict[str, Any]) -> None:
    binds = [volume["source"] for s in everything["services"].values() for volume in s.get("volumes", ()) if volume["type"] == "bind"]
    assert len(binds) >= 8
    for path in (*binds, *(secret["file"] for secret in everything["secrets"].values())):
        assert Path(path).exists(), path
        assert Path(path).is_relative_to(ROOT)
    for targets in ("one", "two"):
        assert f"targets/{targets}.yml" in json.dumps(read("monitoring", OCTAVO_TARGETS=targets))
        assert (DOCKER / "prometheus" / "targets" / f"{targets}.yml").exists()


def test_what_is_built_has_a_dockerfile(octavos: dict[str, Any]) -> None:
    for service in octavos.values():
        assert Path(service["build"]["context"]) == ROOT
        assert (ROOT / service["build"]["dockerfile"]).exists()


def test_the_servers_flags_are_settings_that_can_work(everything: dict[str, Any], octavos: dict[str, Any]) -> None:
    for service in octavos.values():
        engine, server = configs(service["command"], _files(service, everything))
        assert server.max_body_size == 8 << 20
        assert server.api_keys_file == everything["secrets"]["octavo_keys"]["file"]
        assert service["stop_grace_period"] == "45s"
        assert server.grace_period + 10 <= 45
        if engine.device != "cuda":
            limits = service["deploy"]["resources"]["limits"]
            assert engine.num_threads == int(limits["cpus"])
            assert engine.kv_cache_memory is not None
            assert engine.kv_cache_memory <= int(limits["memory"]) // 2


def test_flags_of_the_operator_are_taken_too() -> None:
    everything = read("cpu", OCTAVO_ARGS="--model=some/model --otlp-traces-endpoint=http://jaeger:4318", MAX_BODY_SIZE="1M")
    service = everything["services"]["octavo-1"]
    engine, server = configs(service["command"], _files(service, everything))
    assert (engine.model, server.otlp_traces_endpoint, server.max_body_size) == ("some/model", "http://jaeger:4318", 1 << 20)
    assert everything["services"]["nginx"]["environment"]["MAX_BODY_SIZE"] == "1M"


def test_nginx_has_a_value_for_every_variable_of_its_template(services: dict[str, Any]) -> None:
    environment = services["nginx"]["environment"]
    assert environment["NGINX_ENTRYPOINT_LOCAL_RESOLVERS"] == "1", "the image's entry point then sets NGINX_LOCAL_RESOLVERS"
    variables = set(re.findall(r"\$\{([A-Z_0-9]+)\}", TEMPLATE))
    assert variables == (set(environment) | {"NGINX_LOCAL_RESOLVERS"}) - {"NGINX_ENTRYPOINT_LOCAL_RESOLVERS", "NGINX_ENVSUBST_FILTER"}
    assert all(re.match(environment["NGINX_ENVSUBST_FILTER"], name) for name in variables)


def test_nginx_and_prometheus_ask_for_names_that_servers_have_on_the_port_that_they_listen_on(
    services: dict[str, Any], octavos: dict[str, Any]
) -> None:
    port = ServerConfig().port
    names = {f"{name}:{port}" for name in _names_on("back", octavos)}
    environment = services["nginx"]["environment"]
    assert {environment[f"OCTAVO_SERVER_{number}"].split()[0] for number in (1, 2)} <= names
    for path in (DOCKER / "prometheus" / "targets").iterdir():
        assert {target for group in yaml.safe_load(path.read_text()) for target in group["targets"]} <= names
    assert {"nginx", "prometheus"} <= _names_on("back", services)
    assert services["nginx"]["ports"][0]["target"] == int(environment["NGINX_LISTEN"])
    webui = services["open-webui"]
    assert webui["environment"]["OPENAI_API_BASE_URL"] == f"http://nginx:{environment['NGINX_LISTEN']}/v1"
    assert "nginx" in _names_on("front", services)
    assert "back" not in webui["networks"], "it has no business with the servers' other endpoints"


def test_grafana_asks_the_prometheus_that_runs_beside_it(services: dict[str, Any]) -> None:
    (source,) = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/octavo.yml").read_text())["providers"]
    assert source["url"] == f"http://prometheus:{services['prometheus']['ports'][0]['target']}"
    assert "watch" in services["grafana"]["networks"]
    assert "watch" in services["prometheus"]["networks"]
    mounted = {volume["target"] for volume in services["grafana"]["volumes"]}
    assert provider["options"]["path"] in mounted
    scraped = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped


def test_nothing_can_be_reached_from_other_machines_unless_it_is_said_so(services: dict[str, Any], octavos: dict[str, Any]) -> None:
    for name, service in services.items():
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", ())), name
    assert not any("ports" in service for service in octavos.values())
    opened = read("cpu", *PROFILES[3:], HTTP_ADDRESS="0.0.0.0")["services"]
    assert [name for name, service in opened.items() if any(p["host_ip"] == "0.0.0.0" for p in service.get("ports", ()))] == ["nginx"]


def test_every_service_is_bounded_watched_and_started_again(services: dict[str, Any], octavos: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["restart"] == "unless-stopped", name
        assert name in octavos or service["healthcheck"]["test"], name
        if "gpu" not in name:
            assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
        if name != "open-webui":  # whose image runs as root
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name
    for service in octavos.values():
        assert service["read_only"]


def test_images_of_others_are_pinned_to_a_version(services: dict[str, Any], octavos: dict[str, Any]) -> None:
    for name in services.keys() - octavos.keys():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+(\.\d+)?(-\w+)?", services[name]["image"]), services[name]["image"]


def test_with_a_certificate_nginx_and_who_asks_it_speak_https() -> None:
    services = read("cpu", "webui", overlay="compose.tls.yaml")["services"]
    nginx = services["nginx"]
    assert nginx["environment"]["NGINX_LISTEN"] == f"{nginx['ports'][0]['target']} ssl"
    assert services["open-webui"]["environment"]["OPENAI_API_BASE_URL"] == f"https://nginx:{nginx['ports'][0]['target']}/v1"
    secrets = {f"/run/secrets/{secret['source']}" for secret in nginx["secrets"]}
    assert secrets == set(re.findall(r"/run/secrets/\w+", (DOCKER / "nginx" / "tls.conf").read_text()))
    (mounted,) = [volume for volume in nginx["volumes"] if "tls" in volume["source"]]
    assert Path(mounted["source"]).exists()
    assert nginx["healthcheck"]["test"][-1].startswith("https://")


def test_each_gpu_server_has_a_gpu_of_its_own(services: dict[str, Any]) -> None:
    devices = [services[f"octavo-gpu-{number}"]["deploy"]["resources"]["reservations"]["devices"] for number in (1, 2)]
    assert [device["device_ids"] for (device,) in devices] == [["0"], ["1"]]


def _names_on(network: str, services: dict[str, Any]) -> set[str]:
    on = {name: service["networks"][network] or {} for name, service in services.items() if network in service["networks"]}
    return set(on) | {alias for settings in on.values() for alias in settings.get("aliases", ())}


def _files(service: dict[str, Any], everything: dict[str, Any]) -> dict[str, Path]:
    """Where files of a container come from."""
    mounted = {volume["target"]: Path(volume["source"]) for volume in service["volumes"] if volume["type"] == "bind"}
    secrets = {f"/run/secrets/{secret['source']}": Path(everything["secrets"][secret["source"]]["file"]) for secret in service["secrets"]}
    return mounted | secrets
