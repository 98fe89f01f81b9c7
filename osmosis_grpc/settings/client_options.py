"""Declares the options of the HTTP gateway as a client, OSMOSIS_ROLLOUT_CLIENT_*. See server_options.py.

Options without a flag are about the gateway's calls to trainers. Options with a flag are about the agent server behind
`python -m osmosis_gateway`.
"""

from functools import partial
from pathlib import Path
from typing import ClassVar

from osmosis_grpc.settings.option import BOTH, GATEWAY, Declared, Secret, host_port, option, options_in

_SHOWN = "Others on this machine can see a command line, so prefer the file."

_calls = partial(option, "Calls over HTTP")
_server = partial(option, "Agent server")


class ClientOptions(Declared):
    """Options for the gateway's calls to trainers over HTTP and to its agent server. Times are in seconds."""

    part: ClassVar[str] = "client"

    timeout_seconds: float = _calls("", "Timeout of a call.", 300.0, commands=BOTH, bounds=(1, 3600))
    max_retries: int = _calls("", "How often a chat is retried.", 3, commands=BOTH, bounds=(0, 10))
    complete_rollout_retries: int = _calls(
        "", "How often an outcome is retried before the slow retries begin.", 2, commands=BOTH, bounds=(0, 10)
    )
    retry_base_delay: float = _calls(
        "",
        "First pause between retries. Each pause is shortened at random by up to a half.",
        1.0,
        commands=BOTH,
        bounds=(0.1, 60),
    )
    retry_max_delay: float = _calls("", "Longest pause between retries.", 30.0, commands=BOTH, bounds=(1, 300))
    max_connections: int = _calls("", "Limit of connections.", 100, commands=BOTH, bounds=(1, 100_000))
    max_keepalive_connections: int = _calls(
        "", "Limit of idle connections that are kept.", 20, commands=BOTH, bounds=(0, 100_000)
    )

    target: str | None = _server("--target HOST:PORT", "The gRPC agent server.", commands=GATEWAY, check=host_port)
    token: Secret | None = _server("--target-token SECRET", f"Token to send to --target. {_SHOWN}", commands=GATEWAY)
    token_file: Path | None = _server("--target-token-file FILE", "File that holds --target-token.", commands=GATEWAY)
    tls: bool = _server("--target-tls", "Use TLS with --target. The three options below imply it.", commands=GATEWAY)
    ca: Path | None = _server("--target-ca FILE", "CA of the agent server.", commands=GATEWAY)
    cert: Path | None = _server("--target-cert FILE", "Certificate to send to --target.", commands=GATEWAY)
    key: Path | None = _server("--target-key FILE", "Private key of --target-cert.", commands=GATEWAY)


CLIENT = options_in(ClientOptions)
