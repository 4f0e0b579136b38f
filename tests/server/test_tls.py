"""HTTPS with real certificates, made by the openssl command."""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from live_server import running_server

from engine.errors import ConfigError
from server.config import ServerConfig
from server.tls import Tls

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


def _certificate(directory: Path, name: str, *more: str) -> tuple[str, str]:
    """Paths of a self-signed certificate for 127.0.0.1 and of its key."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate), *(more or ("-nodes",))]
    subprocess.run(command, check=True, capture_output=True)
    return str(certificate), str(key)


def test_https_is_served_to_clients_with_a_certificate_and_to_no_others(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path, "server")
    client_certificate, client_key = _certificate(tmp_path, "client")
    files = ["--ssl-certfile", certificate, "--ssl-keyfile", key, "--ssl-ca-certs", client_certificate, "--ssl-cert-reqs", "optional"]
    with running_server(tmp_path, *files) as server:
        assert server.url.startswith("https://")
        trusting = ssl.create_default_context(cafile=certificate)
        assert httpx.get(f"{server.url}/health", verify=trusting).json() == {"status": "ok"}
        showing = ssl.create_default_context(cafile=certificate)
        showing.load_cert_chain(client_certificate, client_key)
        assert httpx.get(f"{server.url}/v1/models", verify=showing).status_code == 200
        stranger = ssl.create_default_context(cafile=certificate)
        stranger.load_cert_chain(certificate, key)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{server.url}/health", verify=stranger)
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{server.url}/health")
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url.replace("https", "http") + "/health")

        Path(key).rename(tmp_path / "away.key")
        server.process.send_signal(signal.SIGHUP)
        server._wait(lambda: "the certificate stays as it was" in server.log, 10)
        assert httpx.get(f"{server.url}/health", verify=trusting).status_code == 200
        _certificate(tmp_path, "server")
        server.process.send_signal(signal.SIGHUP)
        server._wait(lambda: "certificate read again" in server.log, 10)
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{server.url}/health", verify=trusting)
        assert httpx.get(f"{server.url}/health", verify=ssl.create_default_context(cafile=certificate)).status_code == 200


def test_files_that_make_no_certificate_are_told_in_one_sentence(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path, "one")
    _, other_key = _certificate(tmp_path, "other")
    locked, locked_key = _certificate(tmp_path, "locked", "-passout", "pass:sesame")
    text = tmp_path / "text"
    text.write_text("no certificate\n")
    Tls(ServerConfig(ssl_certfile=locked, ssl_keyfile=locked_key, ssl_keyfile_password="sesame"))
    wrong: list[tuple[dict[str, str], str]] = [
        ({"ssl_certfile": "/nowhere.pem"}, "No such file"),
        ({"ssl_certfile": certificate, "ssl_keyfile": other_key}, "the key does not belong to the certificate"),
        ({"ssl_certfile": str(text), "ssl_keyfile": key}, "PEM"),
        ({"ssl_certfile": certificate}, "PEM"),
        ({"ssl_certfile": locked, "ssl_keyfile": locked_key}, "password is missing or wrong"),
        ({"ssl_certfile": locked, "ssl_keyfile": locked_key, "ssl_keyfile_password": "x"}, "password is missing or wrong"),
        ({"ssl_certfile": certificate, "ssl_keyfile": key, "ssl_ca_certs": "/nowhere.pem"}, "ssl_ca_certs cannot be used"),
        ({"ssl_certfile": certificate, "ssl_keyfile": key, "ssl_ca_certs": str(text)}, "no certificate is in it"),
        ({"ssl_keyfile": key}, "need ssl_certfile"),
        ({"ssl_certfile": certificate, "ssl_keyfile": key, "ssl_cert_reqs": "required"}, "needs ssl_ca_certs"),
    ]
    for settings, reason in wrong:
        with pytest.raises(ConfigError, match=reason):
            Tls(ServerConfig(**settings))  # type: ignore[arg-type]


def test_a_server_whose_certificate_is_not_there_does_not_start(tmp_path: Path) -> None:
    began = time.monotonic()
    command = [sys.executable, "-m", "server.cli", "serve", "--port", "0", "--ssl-certfile", str(tmp_path / "none.pem")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.startswith("octavo: the TLS certificate cannot be used")
    assert result.stderr.count("\n") == 1
    assert time.monotonic() - began < 30
