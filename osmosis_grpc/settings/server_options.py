"""Declares the options of a server, OSMOSIS_ROLLOUT_SERVER_*. To add an option, add a field here, and read the setting.

`osmosis-grpc serve` has the options with "serve" among their commands. `python -m osmosis_gateway` has the options with
"gateway" among their commands. After a change, run `python scripts/settings.py`.
"""

import re
import shlex
from pathlib import Path
from typing import Annotated, Any

from osmosis_grpc.settings.option import BOTH, GATEWAY, PORTS, Declared, Option, Secret, fields_of, host_port

LOG_LEVELS = ("debug", "info", "warning", "error")

_SHOWN = "Others on this machine see a command line: prefer the file."


def _log_level(text: str) -> str:
    if text not in LOG_LEVELS:
        raise ValueError(f"{text} is not one of {', '.join(LOG_LEVELS)}")
    return text


def _module(text: str) -> str:
    module, colon, attribute = text.partition(":")
    if not module or (colon and not attribute):
        raise ValueError(f"{text!r} is not MODULE:ATTRIBUTE, for example server:agent_loop")
    return text


def _class(text: str) -> str:
    module, _, name = text.partition(":")
    if not module or not name:
        raise ValueError(f"{text!r} is not MODULE:CLASS")
    return text


def _key_value(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return text


def sampling_parameter(text: str) -> tuple[str, Any]:
    """Return the name and the value of KEY=VALUE. A value that is not JSON is a string. Raises ValueError."""
    import json

    from osmosis_grpc.protocol.errors import InvalidArgument
    from osmosis_grpc.protocol.types.requests import own_params

    name, _, value = _key_value(text).partition("=")
    if re.search(r",\s*\w+=", value):
        raise ValueError(f"{text!r} has several parameters; repeat the option for each one")
    try:
        read = json.loads(value)
    except ValueError:
        read = value
    try:
        return name, own_params({name: read}, "")[name]
    except InvalidArgument as error:
        raise ValueError(f"{text!r}: {error.violations[0][1]}") from None


def _sampling(text: str) -> str:
    sampling_parameter(text)
    return text


def _resource(text: str) -> str:
    name, _, amount = text.partition("=")
    try:
        if name and float(amount) > 0:
            return text
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not NAME=AMOUNT with an amount above 0, for example CPU=0.5")


def _ray_name(text: str) -> str:
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise ValueError(f"{text!r} is not a name: use at most 64 letters, digits, dots, dashes and underscores")
    return text


def _legacy_agent(text: str) -> str:
    """Return a legacy agent unchanged. Raises ValueError if it is neither NAME=URL nor URL."""
    url = split_legacy_agent(text)[1]
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{text} is not http://HOST:PORT or NAME=http://HOST:PORT")
    return text


def split_legacy_agent(text: str) -> tuple[str, str]:
    """Return the name and the URL of a legacy agent; the name is empty without `NAME=`."""
    name, sep, url = text.partition("=")
    return ("", text) if not sep or "/" in name else (name, url)


SET_BY_SERVER = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
"""Variables of a program whose values are those of its rollout."""


def commands_of(text: str | None) -> list[str]:
    """Return the commands of the option --command, one on each line."""
    return text.removesuffix("\n").split("\n") if text else []


def _commands(text: str) -> str:
    """Return commands unchanged, one on each line. Raises ValueError for a command with an open quote."""
    for line in commands_of(text):
        try:
            shlex.split(line)
        except ValueError as error:
            raise ValueError(f"{line!r} cannot be split: {error}") from None
    return text


def _variable(text: str) -> str:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError(f"{text!r} is not the name of a variable")
    if text in SET_BY_SERVER:
        raise ValueError(f"{text} is always the rollout's own")
    return text


class ServerOptions(Declared):
    """Options for hosting, addresses, trainers, security, the journal, the log and the process."""

    module: Annotated[
        tuple[str, ...],
        Option(
            "Agents",
            "-m, --module MODULE:ATTR",
            "Agent loop to host; for a workflow, also its file (entry.py) or its module.",
            check=_module,
        ),
    ] = ()
    config_file: Annotated[
        Path | None,
        Option("Agents", "--config FILE", "TOML file with the tables [workflow.config], [grader.config] and [server]."),
    ] = None
    workflow_config: Annotated[
        tuple[str, ...],
        Option(
            "Agents",
            "--workflow-config KEY=VALUE",
            "A value of the workflows' configuration. The values of the variable stay, unless the flag replaces them.",
            check=_key_value,
        ),
    ] = ()
    grader_config: Annotated[
        tuple[str, ...],
        Option(
            "Agents", "--grader-config KEY=VALUE", "A value of the graders' configuration, likewise.", check=_key_value
        ),
    ] = ()
    grader: Annotated[
        str | None,
        Option(
            "Agents",
            "--grader MODULE:CLASS",
            "The grader of the workflows, instead of the one in their file.",
            check=_class,
        ),
    ] = None
    legacy_agent: Annotated[
        tuple[str, ...],
        Option("Agents", "--legacy-agent [NAME=]URL", "Legacy HTTP agent server to host.", check=_legacy_agent),
    ] = ()
    legacy_listen: Annotated[
        str,
        Option(
            "Agents",
            "--legacy-listen HOST:PORT",
            "Where legacy agents reach this server; port 0 picks a free one.",
            check=host_port,
        ),
    ] = "127.0.0.1:0"
    legacy_agent_token: Annotated[
        Secret | None, Option("Agents", "", "The bearer token of the legacy agent servers. Never shown.")
    ] = None
    legacy_agent_token_file: Annotated[
        Path | None, Option("Agents", "--legacy-agent-token-file FILE", "File that holds that token.")
    ] = None
    command: Annotated[
        str | None,
        Option(
            "Agents",
            "--command COMMAND",
            "Program to start for each rollout. It uses OPENAI_BASE_URL or ANTHROPIC_BASE_URL.",
            check=_commands,
            lines=True,
        ),
    ] = None
    command_name: Annotated[
        tuple[str, ...],
        Option(
            "Agents",
            "--command-name NAME",
            "A name for each --command, in their order; the default is the script's name.",
        ),
    ] = ()
    command_env: Annotated[
        tuple[str, ...],
        Option(
            "Agents",
            "--command-env VARIABLE",
            "Variable of the server's environment that programs get.",
            check=_variable,
        ),
    ] = ()
    command_timeout_seconds: Annotated[
        float | None,
        Option(
            "Agents",
            "--command-timeout SECONDS",
            "How long a program may run; without it, until the end of its rollout's agent_timeout.",
            bounds=(0.1, 604_800),
        ),
    ] = None
    command_memory_mib: Annotated[
        int | None,
        Option(
            "Agents",
            "--command-memory MIB",
            "The most address space of each process of a program, in MiB; without it, no limit.",
            bounds=(16, 16_777_216),
        ),
    ] = None
    no_validate: Annotated[bool, Option("Agents", "--no-validate", "Do not validate the agent loops first.")] = False
    agent_timeout_seconds: Annotated[
        float,
        Option(
            "Agents",
            "--agent-timeout SECONDS",
            "How long a rollout may run whose request names no agent_timeout.",
            bounds=(1, 604_800),
        ),
    ] = 1800.0
    pin_sampling: Annotated[
        tuple[str, ...],
        Option(
            "Agents",
            "--pin-sampling KEY=VALUE",
            "Sampling parameter that agents cannot change, such as temperature=1.0. A trainer's value comes first.",
            check=_sampling,
        ),
    ] = ()
    max_concurrent_rollouts: Annotated[
        int, Option("Agents", "--max-concurrent N", "Rollouts that run at once.", bounds=(1, 10_000))
    ] = 100
    max_concurrent_per_owner: Annotated[
        int | None,
        Option(
            "Agents",
            "--max-concurrent-per-owner N",
            "Rollouts that one owner may run at once; without it, all slots that other owners leave free.",
            bounds=(1, 10_000),
        ),
    ] = None

    host: Annotated[
        str,
        Option(
            "Addresses",
            "-H, --host ADDRESS",
            "Address to listen on; a public one needs TLS or --insecure.",
            commands=BOTH,
        ),
    ] = "127.0.0.1"
    grpc_port: Annotated[
        int, Option("Addresses", "--grpc-port PORT", "gRPC port; 0 picks a free one.", bounds=PORTS)
    ] = 50051
    http_port: Annotated[
        int,
        Option(
            "Addresses", "-p, --port, --http-port PORT", "HTTP port; 0 picks a free one.", commands=BOTH, bounds=PORTS
        ),
    ] = 9000
    no_http: Annotated[bool, Option("Addresses", "--no-http", "Serve gRPC only.")] = False
    no_reflection: Annotated[
        bool, Option("Addresses", "--no-reflection", "Do not describe the protocol to tools such as buf curl.")
    ] = False
    callback_port: Annotated[
        int,
        Option(
            "Addresses",
            "--callback-port PORT",
            "gRPC port that the agent server calls back at; 0 picks a free one.",
            commands=GATEWAY,
            bounds=PORTS,
        ),
    ] = 50052
    metrics_port: Annotated[
        int | None,
        Option(
            "Addresses",
            "--metrics-port PORT",
            "Serve /metrics for Prometheus here too, on loopback and without a token; 0 picks a free one.",
            bounds=PORTS,
            default="off",
        ),
    ] = None
    view: Annotated[
        bool,
        Option(
            "Addresses",
            "--view",
            "Show the rollouts of all callers in a browser. With admin tokens, a browser has to show one.",
        ),
    ] = False
    view_port: Annotated[
        int,
        Option(
            "Addresses",
            "--view-port PORT",
            "Port of --view; 0 picks a free one. If the default is taken, a free one is picked.",
            bounds=PORTS,
        ),
    ] = 7700
    max_connections: Annotated[
        int | None,
        Option(
            "Addresses",
            "--max-connections N",
            "Connections at once, of gRPC and of HTTP each; without it, a quarter of the files that may be open.",
            commands=BOTH,
            bounds=(1, 65_536),
        ),
    ] = None
    max_connection_age_seconds: Annotated[
        float | None,
        Option(
            "Addresses",
            "--max-connection-age SECONDS",
            "End gRPC connections of this age, so that load balancers can move them. Rollouts go on.",
            bounds=(1, 604_800),
        ),
    ] = None
    max_metadata_size_bytes: Annotated[
        int,
        Option(
            "Addresses", "", "The most bytes of a request's metadata.", commands=BOTH, bounds=(1024, 100 * 1024 * 1024)
        ),
    ] = 1024 * 1024

    connect: Annotated[
        tuple[str, ...],
        Option("Trainers", "--connect HOST:PORT", "Trainer to dial out to and attach to.", check=host_port),
    ] = ()
    connect_token: Annotated[
        Secret | None, Option("Trainers", "--connect-token SECRET", f"Token to show to --connect. {_SHOWN}")
    ] = None
    connect_token_file: Annotated[
        Path | None, Option("Trainers", "--connect-token-file FILE", "File that holds --connect-token.")
    ] = None
    connect_tls: Annotated[
        bool, Option("Trainers", "--connect-tls", "Speak TLS with --connect. The options --trainer-* imply it.")
    ] = False
    max_attachments_per_owner: Annotated[
        int | None,
        Option(
            "Trainers",
            "--max-attachments-per-owner N",
            "Trainers of one owner that may be attached; without it, all that other owners leave of 1,024.",
            bounds=(1, 1024),
        ),
    ] = None
    allow_target: Annotated[
        tuple[str, ...],
        Option(
            "Trainers",
            "--allow-target HOST[:PORT]|CIDR",
            "Address of a trainer that may be called back, besides loopback.",
            commands=BOTH,
        ),
    ] = ()
    trainer_ca: Annotated[
        Path | None, Option("Trainers", "--trainer-ca FILE", "CA of trainers that speak TLS, dialled or called back.")
    ] = None
    trainer_cert: Annotated[
        Path | None, Option("Trainers", "--trainer-cert FILE", "Certificate to show to such trainers.")
    ] = None
    trainer_key: Annotated[Path | None, Option("Trainers", "--trainer-key FILE", "Its private key.")] = None

    token: Annotated[
        Secret | None,
        Option(
            "Security",
            "--api-key, --token [NAME=]SECRET",
            f"Bearer token of callers. The tokens of the variable and of the file are accepted, too. {_SHOWN}",
            commands=BOTH,
            lines=True,
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        Option(
            "Security",
            "--token-file FILE",
            "File of tokens that callers show, [NAME=]SECRET each, one a line.",
            commands=BOTH,
        ),
    ] = None
    local: Annotated[
        bool,
        Option(
            "Security",
            "--local",
            "Ask callers for no token, also if there are tokens. For loopback only.",
            commands=BOTH,
        ),
    ] = False
    skip_register: Annotated[
        bool, Option("Security", "--skip-register", "No effect: this server is registered with no platform.")
    ] = False
    admin_token: Annotated[
        Secret | None,
        Option(
            "Security",
            "--admin-token [NAME=]SECRET",
            f"Bearer token of callers that may drain this server; --token is for callers that start rollouts. {_SHOWN}",
            lines=True,
        ),
    ] = None
    admin_token_file: Annotated[
        Path | None,
        Option("Security", "--admin-token-file FILE", "File of such tokens, [NAME=]SECRET each, one a line."),
    ] = None
    callback_key_file: Annotated[
        Path,
        Option(
            "Security",
            "--callback-key-file FILE",
            "File with the key of the credentials of callbacks. It is created if it is missing. A restarted gateway "
            "needs it to continue.",
            commands=GATEWAY,
        ),
    ] = Path(".osmosis/gateway.key")
    tls_cert: Annotated[
        Path | None,
        Option(
            "Security", "--tls-cert FILE", "Speak TLS, over gRPC and HTTP, with this certificate (PEM).", commands=BOTH
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Option("Security", "--tls-key FILE", "Its private key. Files may be replaced at any time.", commands=BOTH),
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        Option("Security", "--tls-client-ca FILE", "Callers need a certificate of this CA (mTLS).", commands=BOTH),
    ] = None
    insecure: Annotated[
        bool,
        Option(
            "Security", "--insecure", "Listen on public addresses, and send tokens there, without TLS.", commands=BOTH
        ),
    ] = False
    unsafe_trace: Annotated[
        bool, Option("Security", "--unsafe-trace", "Start although GRPC_TRACE may print bearer tokens.", commands=BOTH)
    ] = False

    state_dir: Annotated[str, Option("Journal", "--state-dir DIR", "Folder of the journal; :memory: for none.")] = (
        "./.osmosis/state"
    )
    no_journal: Annotated[bool, Option("Journal", "--no-journal", "Keep everything in memory: a restart loses it.")] = (
        False
    )
    record_ttl_seconds: Annotated[
        float,
        Option(
            "Journal",
            "--record-ttl SECONDS",
            "How long ended rollouts are kept, and how long their delivery is tried.",
            bounds=(60, 86_400),
        ),
    ] = 3600.0
    disk_budget_gib: Annotated[
        float,
        Option(
            "Journal",
            "--disk-budget GIB",
            "The most of the disk that the journal may use; above it, the oldest delivered rollouts are dropped.",
            bounds=(0.01, 100_000),
        ),
    ] = 10.0
    memory_budget_mib: Annotated[
        int,
        Option(
            "Journal",
            "--memory-budget MIB",
            "The most memory of unfinished rollouts and undelivered outcomes; above it, new rollouts are refused.",
            bounds=(16, 1_048_576),
        ),
    ] = 256

    log_level: Annotated[
        str,
        Option(
            "Log",
            "--log-level LEVEL",
            "How much is logged on stderr: debug, info, warning or error.",
            commands=BOTH,
            check=_log_level,
        ),
    ] = "info"
    otel: Annotated[
        bool,
        Option("Log", "--otel", "Make OpenTelemetry traces. The variables OTEL_* name the exporter and its address."),
    ] = False
    log: Annotated[Path | None, Option("Log", "--log DIR", "Write one .jsonl file per rollout below DIR.")] = None
    json_records: Annotated[
        bool, Option("Log", "--json", "Only JSON records on stdout; the first one says ready.", commands=BOTH)
    ] = False

    workers: Annotated[
        int,
        Option(
            "Process",
            "--workers N",
            "Processes that serve as one server, each with its own journal and gRPC port. The limits hold for each.",
            bounds=(1, 128),
        ),
    ] = 1
    drain_timeout: Annotated[
        float,
        Option("Process", "--drain-timeout SECONDS", "Time that running rollouts get on SIGTERM.", bounds=(0, 86_400)),
    ] = 30.0
    ray: Annotated[
        bool,
        Option("Ray", "--ray", "Place such servers on the nodes of a Ray cluster, and start them again when they end."),
    ] = False
    ray_servers: Annotated[
        int | None,
        Option(
            "Ray",
            "--ray-servers N",
            "How many servers; without it, as many as there are nodes at the start.",
            bounds=(1, 1024),
        ),
    ] = None
    ray_resources: Annotated[
        tuple[str, ...],
        Option(
            "Ray",
            "--ray-resources NAME=AMOUNT",
            "What each server reserves, such as CPU=0.5 or GPU=1.",
            check=_resource,
            default="CPU=1",
        ),
    ] = ("CPU=1",)
    ray_name: Annotated[
        str, Option("Ray", "--ray-name NAME", "The name by which ray_targets(NAME) finds the servers.", check=_ray_name)
    ] = "osmosis"
    targets_file: Annotated[
        Path | None,
        Option("Ray", "--targets-file FILE", "File with the addresses of the servers, for trainers that watch it."),
    ] = None
    reload: Annotated[
        bool, Option("Process", "--reload", "Start again when a Python or TOML file below this folder changes.")
    ] = False


SERVER = fields_of("server", ServerOptions)
