"""The options of a server, OSMOSIS_ROLLOUT_SERVER_*. To add one, add a field here and read it where it is used.

`osmosis-grpc serve` has them; those with "gateway" among their commands, `python -m osmosis_gateway` has, too.
After a change, run `python scripts/settings.py`.
"""

from pathlib import Path
from typing import Annotated

from osmosis_grpc.console.option import Declared, Option, Secret, fields_of, host_port

LOG_LEVELS = ("debug", "info", "warning", "error")

_BOTH = ("serve", "gateway")


def _log_level(text: str) -> str:
    if text not in LOG_LEVELS:
        raise ValueError(f"{text} is none of {', '.join(LOG_LEVELS)}")
    return text


def _module(text: str) -> str:
    module, _, attribute = text.partition(":")
    if not module or not attribute:
        raise ValueError(f"{text!r} is not MODULE:ATTRIBUTE, for example server:agent_loop")
    return text


def _legacy_agent(text: str) -> str:
    """Return a legacy agent as it is. Raises ValueError for what is neither NAME=URL nor URL."""
    url = split_legacy_agent(text)[1]
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{text} is not http://HOST:PORT or NAME=http://HOST:PORT")
    return text


def split_legacy_agent(text: str) -> tuple[str, str]:
    """Return name and URL of a legacy agent; the name is empty where there is none."""
    name, sep, url = text.partition("=")
    return ("", text) if not sep or "/" in name else (name, url)


class ServerOptions(Declared):
    """What a server hosts, where it listens, what it keeps, and how it starts and stops."""

    module: Annotated[
        tuple[str, ...],
        Option(
            group="Agents", flags=("-m", "--module"), metavar="MODULE:ATTR", check=_module, help="Agent loop to host."
        ),
    ] = ()
    legacy_agent: Annotated[
        tuple[str, ...],
        Option(
            group="Agents",
            flags=("--legacy-agent",),
            metavar="[NAME=]URL",
            check=_legacy_agent,
            help="Legacy HTTP agent server to host.",
        ),
    ] = ()
    legacy_listen: Annotated[
        str,
        Option(
            group="Agents",
            flags=("--legacy-listen",),
            metavar="HOST:PORT",
            check=host_port,
            help="Where legacy agents reach this server; port 0 picks a free one.",
        ),
    ] = "127.0.0.1:0"
    legacy_agent_token: Annotated[
        Secret | None, Option(group="Agents", help="The bearer token of the legacy agent servers. Never shown.")
    ] = None
    legacy_agent_token_file: Annotated[
        Path | None,
        Option(
            group="Agents", flags=("--legacy-agent-token-file",), metavar="FILE", help="File that holds that token."
        ),
    ] = None
    no_validate: Annotated[
        bool, Option(group="Agents", flags=("--no-validate",), help="Do not validate the agent loops first.")
    ] = False
    agent_timeout_seconds: Annotated[
        float,
        Option(
            group="Agents",
            flags=("--agent-timeout",),
            metavar="SECONDS",
            least=1,
            most=604_800,
            help="How long a rollout may run whose request names no agent_timeout.",
        ),
    ] = 1800.0
    max_concurrent_rollouts: Annotated[
        int,
        Option(
            group="Agents",
            flags=("--max-concurrent",),
            metavar="N",
            least=1,
            most=10_000,
            help="Rollouts that run at once.",
        ),
    ] = 100
    max_concurrent_per_owner: Annotated[
        int | None,
        Option(
            group="Agents",
            flags=("--max-concurrent-per-owner",),
            metavar="N",
            least=1,
            most=10_000,
            help="Rollouts that one owner may run at once; not given, all that others leave.",
        ),
    ] = None

    host: Annotated[
        str,
        Option(
            group="Addresses",
            commands=_BOTH,
            flags=("-H", "--host"),
            metavar="ADDRESS",
            help="Address to listen on; a public one needs TLS or --insecure.",
        ),
    ] = "127.0.0.1"
    grpc_port: Annotated[
        int,
        Option(
            group="Addresses",
            flags=("--grpc-port",),
            metavar="PORT",
            least=0,
            most=65535,
            help="gRPC port; 0 picks a free one.",
        ),
    ] = 50051
    http_port: Annotated[
        int,
        Option(
            group="Addresses",
            commands=_BOTH,
            flags=("-p", "--http-port"),
            metavar="PORT",
            least=0,
            most=65535,
            help="HTTP port; 0 picks a free one.",
        ),
    ] = 9000
    no_http: Annotated[bool, Option(group="Addresses", flags=("--no-http",), help="Serve gRPC only.")] = False
    callback_port: Annotated[
        int,
        Option(
            group="Addresses",
            commands=("gateway",),
            flags=("--callback-port",),
            metavar="PORT",
            least=0,
            most=65535,
            help="gRPC port that the agent server calls back at; 0 picks a free one.",
        ),
    ] = 50052
    metrics_port: Annotated[
        int | None,
        Option(
            group="Addresses",
            flags=("--metrics-port",),
            metavar="PORT",
            least=0,
            most=65535,
            default="off",
            help="Serve /metrics for Prometheus here too, on loopback and without a token; 0 picks a free one.",
        ),
    ] = None
    max_metadata_size_bytes: Annotated[
        int,
        Option(
            group="Addresses",
            commands=_BOTH,
            least=1024,
            most=100 * 1024 * 1024,
            help="The most bytes of a request's metadata.",
        ),
    ] = 1024 * 1024

    connect: Annotated[
        tuple[str, ...],
        Option(
            group="Trainers",
            flags=("--connect",),
            metavar="HOST:PORT",
            check=host_port,
            help="Trainer to dial out to and attach to.",
        ),
    ] = ()
    connect_token: Annotated[
        Secret | None,
        Option(
            group="Trainers",
            flags=("--connect-token",),
            metavar="SECRET",
            help="Token to show to --connect. Others on this machine see a command line: prefer the file.",
        ),
    ] = None
    connect_token_file: Annotated[
        Path | None,
        Option(
            group="Trainers", flags=("--connect-token-file",), metavar="FILE", help="File that holds --connect-token."
        ),
    ] = None
    connect_tls: Annotated[
        bool,
        Option(
            group="Trainers",
            flags=("--connect-tls",),
            help="Speak TLS with --connect. The options --trainer-* imply it.",
        ),
    ] = False
    max_attachments_per_owner: Annotated[
        int | None,
        Option(
            group="Trainers",
            flags=("--max-attachments-per-owner",),
            metavar="N",
            least=1,
            most=1024,
            help="Trainers of one owner that may be attached; not given, all that others leave of 1,024.",
        ),
    ] = None
    allow_target: Annotated[
        tuple[str, ...],
        Option(
            group="Trainers",
            commands=_BOTH,
            flags=("--allow-target",),
            metavar="HOST[:PORT]|CIDR",
            help="Trainer's address that may be called back, beside those of loopback.",
        ),
    ] = ()
    trainer_ca: Annotated[
        Path | None,
        Option(
            group="Trainers",
            flags=("--trainer-ca",),
            metavar="FILE",
            help="CA of trainers that speak TLS, dialled or called back.",
        ),
    ] = None
    trainer_cert: Annotated[
        Path | None,
        Option(
            group="Trainers", flags=("--trainer-cert",), metavar="FILE", help="Certificate to show to such trainers."
        ),
    ] = None
    trainer_key: Annotated[
        Path | None, Option(group="Trainers", flags=("--trainer-key",), metavar="FILE", help="Its private key.")
    ] = None

    token: Annotated[
        Secret | None,
        Option(
            group="ServerSecurity",
            commands=_BOTH,
            flags=("--token",),
            metavar="[NAME=]SECRET",
            lines=True,
            help="Bearer token that callers show. The tokens of the variable and of the file are accepted, too. Others "
            "on this machine see a command line: prefer the file.",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        Option(
            group="ServerSecurity",
            commands=_BOTH,
            flags=("--token-file",),
            metavar="FILE",
            help="File of tokens that callers show, [NAME=]SECRET each, one a line.",
        ),
    ] = None
    admin_token: Annotated[
        Secret | None,
        Option(
            group="ServerSecurity",
            flags=("--admin-token",),
            metavar="[NAME=]SECRET",
            lines=True,
            help="Bearer token of those who may drain this server; --token says who may start rollouts. Others on this "
            "machine see a command line: prefer the file.",
        ),
    ] = None
    admin_token_file: Annotated[
        Path | None,
        Option(
            group="ServerSecurity",
            flags=("--admin-token-file",),
            metavar="FILE",
            help="File of such tokens, [NAME=]SECRET each, one a line.",
        ),
    ] = None
    callback_key_file: Annotated[
        Path,
        Option(
            group="ServerSecurity",
            commands=("gateway",),
            flags=("--callback-key-file",),
            metavar="FILE",
            help="File with the key of the credentials of callbacks. It is made where there is none. A gateway that is "
            "started again needs it to go on.",
        ),
    ] = Path("./.osmosis/gateway.key")
    tls_cert: Annotated[
        Path | None,
        Option(
            group="ServerSecurity",
            commands=_BOTH,
            flags=("--tls-cert",),
            metavar="FILE",
            help="Speak TLS, over gRPC and HTTP, with this certificate (PEM).",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Option(
            group="ServerSecurity",
            commands=_BOTH,
            flags=("--tls-key",),
            metavar="FILE",
            help="Its private key. Files may be replaced at any time.",
        ),
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        Option(
            group="ServerSecurity",
            commands=_BOTH,
            flags=("--tls-client-ca",),
            metavar="FILE",
            help="Callers need a certificate of this CA (mTLS).",
        ),
    ] = None
    insecure: Annotated[
        bool,
        Option(
            group="ServerSecurity",
            commands=_BOTH,
            flags=("--insecure",),
            help="Listen on public addresses, and send tokens there, without TLS.",
        ),
    ] = False
    unsafe_trace: Annotated[
        bool,
        Option(
            group="ServerSecurity",
            commands=_BOTH,
            flags=("--unsafe-trace",),
            help="Start although GRPC_TRACE may print bearer tokens.",
        ),
    ] = False

    state_dir: Annotated[
        str,
        Option(
            group="Journal", flags=("--state-dir",), metavar="DIR", help="Folder of the journal; :memory: for none."
        ),
    ] = "./.osmosis/state"
    no_journal: Annotated[
        bool, Option(group="Journal", flags=("--no-journal",), help="Keep everything in memory: a restart forgets it.")
    ] = False
    record_ttl_seconds: Annotated[
        float,
        Option(
            group="Journal",
            flags=("--record-ttl",),
            metavar="SECONDS",
            least=60,
            most=86_400,
            help="How long ended rollouts are kept, and how long their delivery is tried.",
        ),
    ] = 3600.0

    log_level: Annotated[
        str,
        Option(
            group="Log",
            commands=_BOTH,
            flags=("--log-level",),
            metavar="LEVEL",
            check=_log_level,
            help="How much is logged on stderr: debug, info, warning or error.",
        ),
    ] = "info"
    log: Annotated[
        Path | None,
        Option(group="Log", flags=("--log",), metavar="DIR", help="Write one .jsonl file per rollout below DIR."),
    ] = None
    json_records: Annotated[
        bool,
        Option(
            group="Log",
            commands=_BOTH,
            flags=("--json",),
            help="Only JSON records on stdout; the first one says ready.",
        ),
    ] = False

    drain_timeout: Annotated[
        float,
        Option(
            group="Process",
            flags=("--drain-timeout",),
            metavar="SECONDS",
            least=0,
            most=86_400,
            help="Time that running rollouts get on SIGTERM.",
        ),
    ] = 30.0
    reload: Annotated[
        bool,
        Option(group="Process", flags=("--reload",), help="Start again when a Python file below this folder changes."),
    ] = False


SERVER = fields_of("server", ServerOptions)
"""All options of a server."""
