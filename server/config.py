"""The settings of the HTTP server. Those of the engine are in engine/config.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from engine.errors import ConfigError

_AT_LEAST_ONE = (
    "max_body_size",
    "max_header_size",
    "max_header_count",
    "max_pending_requests",
    "max_sequences_per_request",
    "max_stored_responses",
    "max_batch_file_size",
    "max_batch_storage",
    "batch_concurrency",
    "backlog",
)


def _setting(default: Any, help: str, envvar: str | None = None) -> Any:
    return field(default=default, metadata={"help": help, "envvar": envvar})


@dataclass(frozen=True)
class ServerConfig:
    """Settings of one server. The command line takes each as a flag, and a settings file each as a line.

    Raises ConfigError when a value is out of range.
    """

    host: str = _setting("127.0.0.1", "address to listen on; 0.0.0.0: every interface")
    port: int = _setting(8000, "port to listen on; 0: any free one, told at start-up")
    root_path: str = _setting("", "prefix that a proxy in front removes from the path")
    cors_origins: tuple[str, ...] = _setting((), "web pages' origins that may call this server from a browser; '*': all; may be repeated")
    api_key: str | None = _setting(None, "key that clients must send as a bearer token; none: no key asked", "OCTAVO_API_KEY")

    api_keys_file: str | None = _setting(
        None, "file of API keys, each with a name and limits, as `octavo keys add` writes it; read again on SIGHUP"
    )

    isolate_keys: bool = _setting(
        False, "share cached prefixes among requests of one API key only: others can otherwise tell that a prompt has been seen before"
    )
    admin_key: str | None = _setting(
        None, "key for the admin endpoints, which otherwise exist for admins of --api-keys-file only", "OCTAVO_ADMIN_KEY"
    )
    ssl_certfile: str | None = _setting(None, "certificate chain in PEM for HTTPS, read again on SIGHUP; none: plain HTTP")
    ssl_keyfile: str | None = _setting(None, "its private key; none: in the same file")
    ssl_keyfile_password: str | None = _setting(None, "password of the private key", "OCTAVO_SSL_KEYFILE_PASSWORD")
    ssl_ca_certs: str | None = _setting(None, "certificates in PEM of those who may sign clients' certificates")
    ssl_cert_reqs: Literal["none", "optional", "required"] = _setting("none", "whether clients must show a certificate")
    rate_limit_requests: int = _setting(
        0, "requests per minute of each API key, or of each client address where no key is asked for; 0: no limit"
    )
    rate_limit_tokens: int = _setting(0, "tokens per minute, prompts and answers together, likewise; 0: no limit")
    forwarded_allow_ips: str = _setting(
        "", "addresses and networks, separated by commas, of proxies whose X-Forwarded-For is believed; '*': all; none: nobody's"
    )

    served_model_name: tuple[str, ...] = _setting((), "name of the model in the API; may be repeated, the first is reported")
    chat_template: str | None = _setting(None, "Jinja template, or a file that holds one; none: the model's own")
    trust_request_chat_template: bool = _setting(False, "take chat templates from requests too: they run in a sandbox, for 5 s at most")
    generation_config: Literal["auto", "none"] = _setting(
        "auto", "auto: sampling defaults from the model's generation_config.json; none: OpenAI's defaults"
    )
    allow_unknown_parameters: bool = _setting(False, "log request parameters that nobody knows, rather than refuse them")

    max_body_size: int = _setting(8 << 20, "longest request body, in bytes (suffixes K, M, G)")
    max_header_size: int = _setting(64 << 10, "longest request line and headers of a request together, in bytes; more get 431")
    max_header_count: int = _setting(128, "most headers of a request; more get 431")
    max_pending_requests: int = _setting(
        2048, "requests held at once, waiting ones included; one with several prompts or samples counts as so many; more get 429"
    )
    max_sequences_per_request: int = _setting(256, "sequences that one request may ask for: its prompts times n (or best_of)")
    request_timeout: float | None = _setting(
        None, "seconds until a request that sets no `timeout` ends with 408, whether it waits or runs by then; none: never"
    )
    receive_timeout: float = _setting(60.0, "seconds that a request's headers, and then its body, may take to arrive; 0: for ever")
    response_store: str | None = _setting(None, "file that keeps stored responses over restarts; none: they are kept in memory")
    max_stored_responses: int = _setting(1000, "stored responses that are kept; the least recently used go first")
    batch_dir: str | None = _setting(None, "folder that keeps files and batches over restarts; none: neither is served")
    max_batch_file_size: int = _setting(200 << 20, "longest file of a batch, in bytes (suffixes K, M, G)")
    max_batch_storage: int = _setting(4 << 30, "bytes of all files of batches together (suffixes K, M, G)")
    batch_concurrency: int = _setting(16, "requests of batches that run at once; all others go first")
    web_page: bool = _setting(True, "the page at / for people: chat, and what the engine is doing")
    sse_keepalive: float = _setting(15.0, "seconds of silence in a stream after which a comment line is sent; 0: never")
    grace_period: float = _setting(30.0, "seconds that running requests are given after SIGTERM or Ctrl-C")
    supervise: bool = _setting(False, "a small process in front holds the port, and starts the server again when it dies")
    send_timeout: float = _setting(
        120.0,
        "seconds in which a client may take nothing of what was sent to it, before its connection and its request are ended; 0: for ever",
    )
    timeout_keep_alive: int = _setting(75, "seconds that an idle connection stays open")
    backlog: int = _setting(2048, "connections that the kernel queues for us")

    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "least severe messages that are logged")
    log_format: Literal["pretty", "json"] = _setting("pretty", "pretty: for people; json: one object a line")
    log_requests: bool = _setting(False, "log prompts and answers, which may be private; otherwise they never are")
    otlp_traces_endpoint: str | None = _setting(None, "OpenTelemetry collector for traces, as http://localhost:4318; none: no traces")
    vllm_metric_names: bool = _setting(False, "metrics under vLLM's names as well, for dashboards that exist")
    access_log: bool = _setting(True, "one line per request, at level info")

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, but is {self.port}")
        for name in ("receive_timeout", "send_timeout", "sse_keepalive", "grace_period", "timeout_keep_alive"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be a number of seconds, 0 or more, but is {getattr(self, name)}")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, but is {getattr(self, name)}")
        for name in ("rate_limit_requests", "rate_limit_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be 0 or more, but is {getattr(self, name)}")
        if self.request_timeout is not None and not self.request_timeout > 0:
            raise ConfigError(f"request_timeout must be a number of seconds above 0, but is {self.request_timeout}: leave it out for none")
        if not all(name.strip() for name in self.served_model_name):
            raise ConfigError("served_model_name must not be empty: leave it out for the model's own name")
        if self.ssl_certfile is None and (self.ssl_keyfile is not None or self.ssl_cert_reqs != "none"):
            raise ConfigError("ssl_keyfile and ssl_cert_reqs need ssl_certfile: the server has no certificate of its own")
        if self.ssl_cert_reqs != "none" and self.ssl_ca_certs is None:
            raise ConfigError("ssl_cert_reqs needs ssl_ca_certs: who may sign the clients' certificates")
        for name in ("api_key", "admin_key"):
            if getattr(self, name) is not None and not getattr(self, name).strip():
                raise ConfigError(f"{name} must not be empty: leave it out to ask for none")
        if self.admin_key is not None and self.admin_key == self.api_key:
            raise ConfigError("admin_key must differ from api_key, which every client has")
