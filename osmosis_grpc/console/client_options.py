"""The options of the HTTP gateway as a client, OSMOSIS_ROLLOUT_CLIENT_*: see server_options.py.

Most are about its calls to trainers and have no flag. Those with a flag are about the agent server
behind `python -m osmosis_gateway`.
"""

from pathlib import Path
from typing import Annotated

from osmosis_grpc.console.option import Declared, Option, Secret, fields_of, host_port

_BOTH = ("serve", "gateway")


class ClientOptions(Declared):
    """How the gateway calls trainers over HTTP, and the agent server behind it. Times are in seconds."""

    timeout_seconds: Annotated[
        float, Option(group="Calls over HTTP", commands=_BOTH, least=1, most=3600, help="How long one call may take.")
    ] = 300.0
    max_retries: Annotated[
        int, Option(group="Calls over HTTP", commands=_BOTH, least=0, most=10, help="How often a chat is tried again.")
    ] = 3
    complete_rollout_retries: Annotated[
        int,
        Option(
            group="Calls over HTTP",
            commands=_BOTH,
            least=0,
            most=10,
            help="How often a completion is tried again at once, before the slow retries begin.",
        ),
    ] = 2
    retry_base_delay: Annotated[
        float,
        Option(group="Calls over HTTP", commands=_BOTH, least=0.1, most=60, help="The first backoff between retries."),
    ] = 1.0
    retry_max_delay: Annotated[
        float,
        Option(group="Calls over HTTP", commands=_BOTH, least=1, most=300, help="The longest backoff between retries."),
    ] = 30.0
    max_connections: Annotated[
        int, Option(group="Calls over HTTP", commands=_BOTH, least=1, most=100_000, help="Connections at once.")
    ] = 100
    max_keepalive_connections: Annotated[
        int, Option(group="Calls over HTTP", commands=_BOTH, least=0, most=100_000, help="Idle connections kept.")
    ] = 20

    target: Annotated[
        str | None,
        Option(
            group="Agent server",
            commands=("gateway",),
            flags=("--target",),
            metavar="HOST:PORT",
            check=host_port,
            help="The gRPC agent server.",
        ),
    ] = None
    token: Annotated[
        Secret | None,
        Option(
            group="Agent server",
            commands=("gateway",),
            flags=("--target-token",),
            metavar="SECRET",
            help="Token to show to --target. Others on this machine see a command line: prefer the file.",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        Option(
            group="Agent server",
            commands=("gateway",),
            flags=("--target-token-file",),
            metavar="FILE",
            help="File that holds --target-token.",
        ),
    ] = None
    tls: Annotated[
        bool,
        Option(
            group="Agent server",
            commands=("gateway",),
            flags=("--target-tls",),
            help="Speak TLS with --target. The three options below imply it.",
        ),
    ] = False
    ca: Annotated[
        Path | None,
        Option(
            group="Agent server",
            commands=("gateway",),
            flags=("--target-ca",),
            metavar="FILE",
            help="CA of the agent server.",
        ),
    ] = None
    cert: Annotated[
        Path | None,
        Option(
            group="Agent server",
            commands=("gateway",),
            flags=("--target-cert",),
            metavar="FILE",
            help="Certificate to show to it.",
        ),
    ] = None
    key: Annotated[
        Path | None,
        Option(
            group="Agent server",
            commands=("gateway",),
            flags=("--target-key",),
            metavar="FILE",
            help="Its private key.",
        ),
    ] = None


CLIENT = fields_of("client", ClientOptions)
"""All options of the gateway as a client."""
