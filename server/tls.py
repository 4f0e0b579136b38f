"""TLS: the server's certificate, and those that it asks of clients."""

from __future__ import annotations

import ssl
from pathlib import Path

from engine.errors import ConfigError
from server.config import ServerConfig
from server.observability.logs import logger

_REQUIREMENTS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Tls:
    """The TLS side of one server: 1.2 or newer, with Python's choice of ciphers. Raises ConfigError when the files do not make one."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load_certificate()
        if config.ssl_ca_certs is not None:
            try:
                self.context.load_verify_locations(config.ssl_ca_certs)
            except OSError as error:
                raise ConfigError(f"ssl_ca_certs cannot be used: {config.ssl_ca_certs}: {_reason(error)}") from error
        self.context.verify_mode = _REQUIREMENTS[config.ssl_cert_reqs]

    def reload(self) -> None:
        """Read certificate and key again, for connections to come. Files that do not work change nothing, and are told to the log."""
        try:
            self._load_certificate()
        except ConfigError as error:
            logger.error("the certificate stays as it was: %s", error)
        else:
            logger.info("certificate read again from %s", self._config.ssl_certfile)

    def _load_certificate(self) -> None:
        config = self._config
        assert config.ssl_certfile is not None
        # Without a password OpenSSL would ask for one on the terminal.
        password = config.ssl_keyfile_password or ""
        # Tried on a context of its own: one that fails half way through would leave a certificate without its key.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
            try:
                context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password)
            except OSError as error:
                files = config.ssl_certfile if config.ssl_keyfile is None else f"{config.ssl_certfile} with {config.ssl_keyfile}"
                reason = "the key's password is missing or wrong" if self._is_locked() else _reason(error)
                raise ConfigError(f"the TLS certificate cannot be used: {files}: {reason}") from error

    def _is_locked(self) -> bool:
        """Whether the key's file can be read but has a password: OpenSSL's own reasons for failing with one differ by version."""
        try:
            return "ENCRYPTED" in Path(self._config.ssl_keyfile or self._config.ssl_certfile or "").read_text()
        except (OSError, UnicodeDecodeError):
            return False


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        reasons = {
            "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
            "NO_CERTIFICATE_OR_CRL_FOUND": "no certificate is in it",
        }
        return reasons.get(error.reason or "", "this is no PEM file of a certificate or key")
    return error.strerror or str(error)
