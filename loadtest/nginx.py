"""nginx as docker/ configures it, in front of servers on this machine: Debian's nginx-light and gettext-base (envsubst)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

TEMPLATE = Path(__file__).parent.parent / "docker" / "nginx" / "octavo.conf.template"
_TLS = TEMPLATE.with_name("tls.conf")

# What stands around the template in the official image, with every path in a directory of ours.
_AROUND = """
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/error.log info;
worker_processes 1;
worker_rlimit_nofile 4096;
events {{ worker_connections 4096; }}
http {{
    access_log {directory}/access.log;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {directory}/octavo.conf;
    include {directory}/tls.conf;
}}
"""


def is_installed() -> bool:
    return shutil.which("nginx") is not None and shutil.which("envsubst") is not None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def nginx(directory: Path, servers: tuple[str, str], certificate: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Runs nginx in front of two URLs, with its files in `directory`, and yields its own URL.

    `certificate`: files of the chain and of the key, for HTTPS.
    """
    port = free_port()
    first, second = (urlsplit(server).netloc for server in servers)
    variables = {
        "NGINX_LISTEN": f"127.0.0.1:{port}" + ("" if certificate is None else " ssl"),
        "NGINX_LOCAL_RESOLVERS": "127.0.0.1",  # addresses are not looked up
        "OCTAVO_SERVER_1": first,
        "OCTAVO_SERVER_2": second,
        "MAX_BODY_SIZE": "8M",
    }
    # As the image does: only variables that are set are filled in, so that nginx's own stay.
    names = " ".join(f"${{{name}}}" for name in variables)
    filled = subprocess.run(
        ["envsubst", names], input=TEMPLATE.read_text(), env=os.environ | variables, capture_output=True, text=True, check=True
    )
    (directory / "octavo.conf").write_text(filled.stdout)
    tls = ""
    if certificate is not None:
        tls = _TLS.read_text()
        for secret, path in zip(("tls_chain", "tls_key"), certificate, strict=True):
            tls = tls.replace(f"/run/secrets/{secret}", str(path))
    (directory / "tls.conf").write_text(tls)
    (directory / "nginx.conf").write_text(_AROUND.format(directory=directory))
    process = subprocess.Popen(["nginx", "-p", str(directory), "-e", f"{directory}/error.log", "-c", f"{directory}/nginx.conf"])
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"nginx did not start: {(directory / 'error.log').read_text()}") from None
                time.sleep(0.05)
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)
