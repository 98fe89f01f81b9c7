"""Declares the options of the HTTP gateway as a client, OSMOSIS_ROLLOUT_CLIENT_*. See server_options.py.

Most options are about the gateway's calls to trainers. They have no flag. The options with a flag are about the agent
server behind `python -m osmosis_gateway`.
"""

from pathlib import Path
from typing import Annotated

from osmosis_grpc.settings.option import BOTH, GATEWAY, Declared, Option, Secret, fields_of, host_port

_SHOWN = "Others on this machine see a command line: prefer the file."


class ClientOptions(Declared):
    """Options for the gateway's calls to trainers over HTTP and to its agent server. Times are in seconds."""

    timeout_seconds: Annotated[
        float, Option("Calls over HTTP", "", "How long one call may take.", commands=BOTH, bounds=(1, 3600))
    ] = 300.0
    max_retries: Annotated[
        int, Option("Calls over HTTP", "", "How often a chat is retried.", commands=BOTH, bounds=(0, 10))
    ] = 3
    complete_rollout_retries: Annotated[
        int,
        Option(
            "Calls over HTTP",
            "",
            "How often an outcome is retried at once, before the slow retries begin.",
            commands=BOTH,
            bounds=(0, 10),
        ),
    ] = 2
    retry_base_delay: Annotated[
        float,
        Option(
            "Calls over HTTP",
            "",
            "The first backoff between retries. Each is shortened at random by up to a half.",
            commands=BOTH,
            bounds=(0.1, 60),
        ),
    ] = 1.0
    retry_max_delay: Annotated[
        float, Option("Calls over HTTP", "", "The longest backoff between retries.", commands=BOTH, bounds=(1, 300))
    ] = 30.0
    max_connections: Annotated[
        int, Option("Calls over HTTP", "", "Connections at once.", commands=BOTH, bounds=(1, 100_000))
    ] = 100
    max_keepalive_connections: Annotated[
        int, Option("Calls over HTTP", "", "Idle connections kept.", commands=BOTH, bounds=(0, 100_000))
    ] = 20

    target: Annotated[
        str | None,
        Option("Agent server", "--target HOST:PORT", "The gRPC agent server.", commands=GATEWAY, check=host_port),
    ] = None
    token: Annotated[
        Secret | None,
        Option("Agent server", "--target-token SECRET", f"Token to show to --target. {_SHOWN}", commands=GATEWAY),
    ] = None
    token_file: Annotated[
        Path | None,
        Option("Agent server", "--target-token-file FILE", "File that holds --target-token.", commands=GATEWAY),
    ] = None
    tls: Annotated[
        bool,
        Option(
            "Agent server",
            "--target-tls",
            "Speak TLS with --target. The three options below imply it.",
            commands=GATEWAY,
        ),
    ] = False
    ca: Annotated[
        Path | None, Option("Agent server", "--target-ca FILE", "CA of the agent server.", commands=GATEWAY)
    ] = None
    cert: Annotated[
        Path | None, Option("Agent server", "--target-cert FILE", "Certificate to show to it.", commands=GATEWAY)
    ] = None
    key: Annotated[Path | None, Option("Agent server", "--target-key FILE", "Its private key.", commands=GATEWAY)] = (
        None
    )


CLIENT = fields_of("client", ClientOptions)
