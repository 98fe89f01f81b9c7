"""Declares the options of a server, OSMOSIS_ROLLOUT_SERVER_*. To add an option, add a line here, and read the setting.

The `commands` of an option say which command has it: "serve" is `osmosis-grpc serve`, and "gateway" is
`python -m osmosis_gateway`. After a change, run `make docs`.
"""

from functools import partial
from pathlib import Path
from typing import ClassVar

from osmosis_grpc.settings import value_checks as checks
from osmosis_grpc.settings.option import BOTH, GATEWAY, PORTS, Declared, Secret, host_port, option, options_in

_SHOWN = "Others on this machine can see a command line, so prefer the file."
SET_BY_SERVER = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
"""Variables that each rollout sets for its program."""
_module = checks.like("[^:]+(:.+)?", "MODULE:ATTRIBUTE, for example server:agent_loop")
_environment = checks.like(
    "[a-z][a-z0-9-]*:.+", "KIND:NAME[,KEY=VALUE...], for example reasoning-gym:leg_counting,size=50"
)
_class = checks.like("[^:]+:.+", "MODULE:CLASS")
_key_value = checks.like("[^=]+=.*", "KEY=VALUE")
_log_level = checks.like("debug|info|warning|error", "one of debug, info, warning, error")
_ray_name = checks.like(
    "[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "a name: use at most 64 letters, digits, dots, dashes and underscores"
)
_legacy_agent = checks.like("([^/=]*=)?https?://.*", "http://HOST:PORT or NAME=http://HOST:PORT")


_name = checks.like("[A-Za-z_][A-Za-z0-9_]*", "the name of a variable")


def _variable(text: str) -> str:
    if _name(text) in SET_BY_SERVER:
        raise ValueError(f"{text} is always the rollout's own")
    return text


_agents = partial(option, "Agents")
_addresses = partial(option, "Addresses")
_trainers = partial(option, "Trainers")
_security = partial(option, "Security")
_journal = partial(option, "Journal")
_log = partial(option, "Log")
_process = partial(option, "Process")
_ray = partial(option, "Ray")


class ServerOptions(Declared):
    """Options for hosting, addresses, trainers, security, the journal, the log and the process."""

    part: ClassVar[str] = "server"

    module: tuple[str, ...] = _agents(
        "-m, --module MODULE:ATTR",
        "Agent loop to host. For a workflow, you can also pass its file (entry.py) or its module.",
        check=_module,
        common=True,
    )
    env: tuple[str, ...] = _agents(
        "--env KIND:NAME",
        "Environment of another library to host, with its options: reasoning-gym:leg_counting,size=50.",
        check=_environment,
        common=True,
    )
    config_file: Path | None = _agents(
        "--config FILE", "TOML file with [workflow.config], [grader.config], [server] and [client].", common=True
    )
    workflow_config: tuple[str, ...] = _agents(
        "--workflow-config KEY=VALUE",
        "A value of the workflows' configuration. It is added to the values of the variable, and replaces equal keys.",
        check=_key_value,
    )
    grader_config: tuple[str, ...] = _agents(
        "--grader-config KEY=VALUE", "The same as --workflow-config, for graders.", check=_key_value
    )
    grader: str | None = _agents(
        "--grader MODULE:CLASS",
        "The grader of the workflows, instead of the one in their file.",
        check=_class,
        common=True,
    )
    legacy_agent: tuple[str, ...] = _agents(
        "--legacy-agent [NAME=]URL", "Legacy HTTP agent server to host.", check=_legacy_agent
    )
    legacy_listen: str = _agents(
        "--legacy-listen HOST:PORT",
        "Address at which legacy agents call this server; port 0 picks a free one.",
        "127.0.0.1:0",
        check=host_port,
    )
    legacy_agent_token: Secret | None = _agents("", "Bearer token for the legacy agent servers. It is never printed.")
    legacy_agent_token_file: Path | None = _agents("--legacy-agent-token-file FILE", "File that holds this token.")
    program: tuple[str, ...] = _agents(
        "--program NAME",
        "Coding program to start for each rollout: claude-code, codex, opencode, qwen-code, gemini-cli, pi, "
        "mini-swe-agent, aider, openhands, or a .toml file that describes one.",
        common=True,
    )
    box: str | None = _agents(
        "--box docker:IMAGE",
        "Image for the programs. Each runs in its own container, which the [box] table of its file configures.",
        check=checks.box,
        common=True,
    )
    tasks: Path | None = _agents(
        "--tasks FOLDER", "Folder of tasks in Harbor's format. Each program runs in the box of its rollout's task."
    )
    program_context: int = _agents(
        "--program-context TOKENS",
        "Tokens of the model's context. Coding programs summarize their history before it is full.",
        200_000,
        bounds=(1024, 100_000_000),
    )
    reward: str | None = _agents(
        "--reward COMMAND",
        "Command that runs in the program's folder after the program has ended, and prints the reward.",
        check=checks.commands,
    )
    strict_exit: bool = _agents(
        "--strict-exit", "A program fails if its exit code is not 0, even if it has written a result file."
    )
    command: str | None = _agents(
        "--command COMMAND",
        "Program to start for each rollout. It sends its chats to OPENAI_BASE_URL or ANTHROPIC_BASE_URL.",
        check=checks.commands,
        lines=True,
        common=True,
    )
    command_name: tuple[str, ...] = _agents(
        "--command-name NAME",
        "Name of a --command, in the order of the commands; the default is the script's name.",
        (),
    )
    command_env: tuple[str, ...] = _agents(
        "--command-env VARIABLE", "Variable of the server's environment that programs get.", check=_variable
    )
    command_timeout_seconds: float | None = _agents(
        "--command-timeout SECONDS",
        "Time limit of a program; the default is the rollout's agent_timeout.",
        bounds=(0.1, 604_800),
    )
    command_memory_mib: int | None = _agents(
        "--command-memory MIB",
        "Limit of the address space of each process of a program, in MiB; the default is no limit.",
        bounds=(16, 16_777_216),
    )
    no_validate: bool = _agents("--no-validate", "Do not validate the agent loops first.")
    agent_timeout_seconds: float = _agents(
        "--agent-timeout SECONDS",
        "Time limit of a rollout if its request has no agent_timeout.",
        1800.0,
        bounds=(1, 604_800),
        common=True,
    )
    pin_sampling: tuple[str, ...] = _agents(
        "--pin-sampling KEY=VALUE",
        "Sampling parameter that agents cannot change, such as temperature=1.0. A value of the trainer replaces it.",
        check=checks.sampling,
    )
    max_concurrent_rollouts: int = _agents(
        "--max-concurrent N", "Rollouts that run at once.", 100, bounds=(1, 10_000), common=True
    )
    max_concurrent_per_owner: int | None = _agents(
        "--max-concurrent-per-owner N",
        "Rollouts that one owner may run at once; the default is all slots that other owners leave free.",
        bounds=(1, 10_000),
    )

    host: str = _addresses(
        "-H, --host ADDRESS",
        "Address to listen on; a public one needs TLS or --insecure.",
        "127.0.0.1",
        commands=BOTH,
        common=True,
    )
    grpc_port: int = _addresses("--grpc-port PORT", "gRPC port; 0 picks a free one.", 50051, bounds=PORTS, common=True)
    http_port: int = _addresses(
        "-p, --port, --http-port PORT",
        "HTTP port, other than the gRPC port; 0 picks a free one.",
        9000,
        commands=BOTH,
        bounds=PORTS,
        common=True,
    )
    no_http: bool = _addresses("--no-http", "Serve gRPC only.")
    no_reflection: bool = _addresses("--no-reflection", "Do not describe the protocol to tools such as buf curl.")
    callback_port: int = _addresses(
        "--callback-port PORT",
        "gRPC port for callbacks of the agent server; 0 picks a free one.",
        50052,
        commands=GATEWAY,
        bounds=PORTS,
    )
    metrics_port: int | None = _addresses(
        "--metrics-port PORT",
        "Also serve /metrics for Prometheus on this port, on loopback and without a token; 0 picks a free one.",
        bounds=PORTS,
        shown="off",
        common=True,
    )
    view: bool = _addresses(
        "--view",
        "Show the rollouts of all callers in a browser. If there are admin tokens, the browser must send one.",
        common=True,
    )
    view_port: int = _addresses(
        "--view-port PORT",
        "Port of --view; 0 picks a free one. If the default is taken, a free one is picked.",
        7700,
        bounds=PORTS,
    )
    max_connections: int | None = _addresses(
        "--max-connections N",
        "Limit of connections, for gRPC and HTTP separately; the default is a quarter of the files that may be open.",
        commands=BOTH,
        bounds=(1, 65_536),
    )
    max_connection_age_seconds: float | None = _addresses(
        "--max-connection-age SECONDS",
        "Close gRPC connections of this age, so that load balancers can move them. Rollouts continue.",
        bounds=(1, 604_800),
    )
    max_metadata_size_bytes: int = _addresses(
        "", "Limit of a request's metadata, in bytes.", 1024 * 1024, commands=BOTH, bounds=(1024, 100 * 1024 * 1024)
    )

    connect: tuple[str, ...] = _trainers(
        "--connect HOST:PORT", "Trainer that this server connects to.", check=host_port, common=True
    )
    connect_token: Secret | None = _trainers("--connect-token SECRET", f"Token to send to --connect. {_SHOWN}")
    connect_token_file: Path | None = _trainers("--connect-token-file FILE", "File that holds --connect-token.")
    connect_tls: bool = _trainers("--connect-tls", "Use TLS with --connect. The options --trainer-* imply it.")
    max_attachments_per_owner: int | None = _trainers(
        "--max-attachments-per-owner N",
        "Trainers of one owner that may be attached; the default is all of 1,024 that other owners leave free.",
        bounds=(1, 1024),
    )
    allow_target: tuple[str, ...] = _trainers(
        "--allow-target HOST[:PORT]|CIDR",
        "Address of a trainer that may be called back, besides loopback.",
        commands=BOTH,
        common=True,
    )
    trainer_ca: Path | None = _trainers(
        "--trainer-ca FILE", "CA of trainers with TLS, for --connect and for callbacks."
    )
    trainer_cert: Path | None = _trainers("--trainer-cert FILE", "Certificate to send to trainers with TLS.")
    trainer_key: Path | None = _trainers("--trainer-key FILE", "Private key of --trainer-cert.")

    token: Secret | None = _security(
        "--api-key, --token [NAME=]SECRET",
        f"Bearer token of callers. It is added to the tokens of the variable and the file. {_SHOWN}",
        commands=BOTH,
        lines=True,
    )
    token_file: Path | None = _security(
        "--token-file FILE",
        "File with the tokens of callers, one [NAME=]SECRET on each line.",
        commands=BOTH,
        common=True,
    )
    local: bool = _security(
        "--local",
        "Require no token from callers, even if there are tokens. For loopback only.",
        commands=BOTH,
        common=True,
    )
    skip_register: bool = _security(
        "--skip-register", "No effect, because this server is never registered with a platform."
    )
    admin_token: Secret | None = _security(
        "--admin-token [NAME=]SECRET",
        f"Bearer token of callers that may drain this server; --token is for callers that start rollouts. {_SHOWN}",
        lines=True,
    )
    admin_token_file: Path | None = _security(
        "--admin-token-file FILE", "File with admin tokens, one [NAME=]SECRET on each line.", common=True
    )
    callback_key_file: Path = _security(
        "--callback-key-file FILE",
        "File with the key for the credentials of callbacks, which a restarted gateway needs to continue. It is "
        "created if it is missing.",
        Path(".osmosis/gateway.key"),
        commands=GATEWAY,
    )
    tls_cert: Path | None = _security(
        "--tls-cert FILE", "Use TLS for gRPC and HTTP, with this certificate (PEM).", commands=BOTH, common=True
    )
    tls_key: Path | None = _security(
        "--tls-key FILE", "Private key of --tls-cert. You can replace both at any time.", commands=BOTH, common=True
    )
    tls_client_ca: Path | None = _security(
        "--tls-client-ca FILE", "Require a client certificate of this CA (mTLS).", commands=BOTH
    )
    insecure: bool = _security(
        "--insecure",
        "Allow a public address without TLS, so that tokens are sent in plain text.",
        commands=BOTH,
        common=True,
    )
    unsafe_trace: bool = _security("--unsafe-trace", "Start even if GRPC_TRACE may print bearer tokens.", commands=BOTH)

    state_dir: str = _journal(
        "--state-dir DIR", "Folder of the journal; :memory: for none.", "./.osmosis/state", common=True
    )
    no_journal: bool = _journal("--no-journal", "Keep everything in memory, so that a restart loses it.", common=True)
    record_ttl_seconds: float = _journal(
        "--record-ttl SECONDS",
        "How long ended rollouts are kept, and how long their delivery is retried.",
        3600.0,
        bounds=(60, 86_400),
    )
    disk_budget_gib: float = _journal(
        "--disk-budget GIB",
        "Limit of the journal's size. Above it, the oldest delivered rollouts are deleted.",
        10.0,
        bounds=(0.01, 100_000),
    )
    memory_budget_mib: int = _journal(
        "--memory-budget MIB",
        "Memory limit of unfinished rollouts and undelivered outcomes. Above it, new rollouts are refused.",
        256,
        bounds=(16, 1_048_576),
    )

    log_level: str = _log(
        "--log-level LEVEL",
        "Level of the log on stderr: debug, info, warning or error.",
        "info",
        commands=BOTH,
        check=_log_level,
        common=True,
    )
    otel: bool = _log("--otel", "Make OpenTelemetry traces. The variables OTEL_* configure the exporter.", common=True)
    log: Path | None = _log("--log DIR", "Write one .jsonl file per rollout below DIR.", common=True)
    json_records: bool = _log(
        "--json", "Print only JSON records on stdout, beginning with the ready record.", commands=BOTH
    )

    workers: int = _process(
        "--workers N",
        "Processes that serve as one server, each with its own journal and gRPC port. Limits apply to each.",
        1,
        bounds=(1, 128),
        common=True,
    )
    drain_timeout: float = _process(
        "--drain-timeout SECONDS",
        "Time that running rollouts get after SIGTERM.",
        30.0,
        bounds=(0, 86_400),
        common=True,
    )
    reload: bool = _process("--reload", "Restart when a Python or TOML file below this folder changes.", common=True)

    ray: bool = _ray("--ray", "Run servers like this one on the nodes of a Ray cluster, and restart those that end.")
    ray_servers: int | None = _ray(
        "--ray-servers N", "Number of servers; the default is the number of nodes at the start.", bounds=(1, 1024)
    )
    ray_resources: tuple[str, ...] = _ray(
        "--ray-resources NAME=AMOUNT",
        "What each server reserves, such as CPU=0.5 or GPU=1.",
        ("CPU=1",),
        check=checks.resource,
        shown="CPU=1",
    )
    ray_name: str = _ray(
        "--ray-name NAME", "Name for ray_targets(NAME), which finds the servers.", "osmosis", check=_ray_name
    )
    targets_file: Path | None = _ray(
        "--targets-file FILE", "File with the addresses of the servers, for trainers that watch it."
    )


SERVER = options_in(ServerOptions)
