"""The serve command: its options and their checks. What runs then is in osmosis_grpc.serve.process.

Heavy imports stand in the functions, so that --help answers at once.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from pydantic import SecretStr

    from osmosis_grpc.agent import RolloutAgentLoop
    from osmosis_grpc.settings import RolloutSettings

DEFAULT_HTTP_PORT = 9000


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def serve(
    module: Annotated[
        list[str] | None,
        typer.Option("-m", "--module", metavar="MODULE:ATTR", help="Agent loop to host; may be repeated."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", "-H", help="Address to bind; a public one needs TLS or --insecure.")
    ] = "127.0.0.1",
    grpc_port: Annotated[
        int, typer.Option("--grpc-port", min=0, max=65535, help="gRPC port; 0 picks a free one.")
    ] = 50051,
    http_port: Annotated[
        int | None,
        typer.Option("-p", "--http-port", min=0, max=65535, help="HTTP port; 0 picks a free one. Default: 9000."),
    ] = None,
    no_http: Annotated[bool, typer.Option("--no-http", help="Serve gRPC only.")] = False,
    legacy_agent: Annotated[
        list[str] | None,
        typer.Option("--legacy-agent", metavar="[NAME=]URL", help="Legacy HTTP agent server to host; repeatable."),
    ] = None,
    legacy_listen: Annotated[
        str, typer.Option("--legacy-listen", metavar="HOST:PORT", help="Where legacy agents reach this server.")
    ] = "127.0.0.1:0",
    max_concurrent: Annotated[
        int | None, typer.Option("--max-concurrent", min=1, help="Rollouts that run at once. Default: 100.")
    ] = None,
    record_ttl: Annotated[
        float | None, typer.Option("--record-ttl", min=1, help="Seconds that ended rollouts are kept. Default: 3600.")
    ] = None,
    agent_timeout: Annotated[
        float | None,
        typer.Option(
            "--agent-timeout",
            metavar="SECONDS",
            help="How long a rollout may run whose request names no agent_timeout. Default: 1800.",
        ),
    ] = None,
    allow_target: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-target", metavar="HOST[:PORT]|CIDR", help="Callback target to allow beside loopback; repeatable."
        ),
    ] = None,
    connect: Annotated[
        list[str] | None,
        typer.Option("--connect", metavar="HOST:PORT", help="Trainer to dial out to and attach to; repeatable."),
    ] = None,
    state_dir: Annotated[
        str | None,
        typer.Option(
            "--state-dir", metavar="DIR", help="Where the journal is, or :memory:. Default: ./.osmosis/state."
        ),
    ] = None,
    no_journal: Annotated[
        bool, typer.Option("--no-journal", help="Keep everything in memory: a restart forgets it.")
    ] = False,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Speak TLS with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="FILE", help="Its private key. Files may be replaced at any time."),
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option("--tls-client-ca", metavar="FILE", help="Callers need a certificate of this CA (mTLS)."),
    ] = None,
    token: Annotated[
        list[str] | None,
        typer.Option(
            "--token",
            metavar="[NAME=]SECRET",
            help="Bearer token that callers show; repeatable. Others on this machine "
            "see a command line: OSMOSIS_ROLLOUT_SERVER_TOKEN holds tokens, too, one a line.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Bind to public addresses, and send tokens there, without TLS.")
    ] = False,
    connect_token: Annotated[
        str | None,
        typer.Option(
            "--connect-token",
            metavar="SECRET",
            help="Token to show to --connect; OSMOSIS_ROLLOUT_SERVER_CONNECT_TOKEN is another way.",
        ),
    ] = None,
    connect_tls: Annotated[
        bool, typer.Option("--connect-tls", help="Speak TLS with --connect. Implied by the options --trainer-*.")
    ] = False,
    trainer_ca: Annotated[
        Path | None,
        typer.Option("--trainer-ca", metavar="FILE", help="CA of trainers that speak TLS, dialled or called back."),
    ] = None,
    trainer_cert: Annotated[
        Path | None, typer.Option("--trainer-cert", metavar="FILE", help="Certificate to show to such trainers.")
    ] = None,
    trainer_key: Annotated[Path | None, typer.Option("--trainer-key", metavar="FILE", help="Its private key.")] = None,
    unsafe_trace: Annotated[
        bool, typer.Option("--unsafe-trace", help="Start although GRPC_TRACE may print bearer tokens.")
    ] = False,
    no_validate: Annotated[bool, typer.Option("--no-validate", help="Do not validate the agents first.")] = False,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="DIR", help="Write one .jsonl file per rollout below DIR.")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="How much is logged, on stderr.")] = LogLevel.INFO,
    drain_timeout: Annotated[
        float, typer.Option("--drain-timeout", min=0, help="Seconds that running rollouts get on SIGTERM.")
    ] = 30.0,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a Python file below here changes.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Only JSON records on stdout; the first one says ready.")
    ] = False,
) -> None:
    """Host agent loops over gRPC, and over the legacy HTTP contract."""
    from osmosis_grpc.link.commandline import access_of, check_trace, security_of
    from osmosis_grpc.link.targets import TargetPolicy, is_loopback
    from osmosis_grpc.serve.records import records
    from osmosis_grpc.settings import grpc_tracers

    legacy, listen = [_legacy_row(text) for text in legacy_agent or ()], _host_port(legacy_listen, "--legacy-listen")
    targets = [_target(text) for text in connect or ()]
    if not module and not legacy:
        _usage("there is nothing to host: name an agent loop with -m/--module MODULE:ATTR")
    if no_journal and state_dir is not None:
        _usage("--no-journal does not go with --state-dir")
    if no_http and http_port is not None:
        _usage("--no-http does not go with -p")
    if agent_timeout is not None and not 0 < agent_timeout < float("inf"):
        _usage(f"--agent-timeout {agent_timeout:g}: is not a number of seconds greater than 0")
    try:
        TargetPolicy(loopback=True, allow=allow_target or ())
    except ValueError as error:
        _usage(f"--allow-target: {error}")
    settings = _settings()
    try:
        if not unsafe_trace:
            check_trace(grpc_tracers())
        tokens = [*settings.server.tokens, *(token or ())]
        guard = security_of(tokens, tls_cert, tls_key, tls_client_ca, insecure=insecure)
        guard.check_host(host)
        shown = connect_token or _secret(settings.server.connect_token)
        dialling = access_of(
            shown, trainer_ca, trainer_cert, trainer_key, tls=connect_tls, insecure=insecure,
            names=("--connect-token", "--trainer"),
        )  # fmt: skip
    except ValueError as error:
        _usage(str(error))
    for target in targets:
        try:
            dialling.check_target(target)
        except ValueError as error:
            _usage(f"--connect {error}: --connect-tls, or --insecure")
    if legacy and not insecure and not is_loopback(listen[0]):
        _usage(f"--legacy-listen {legacy_listen} is not loopback, and keys would travel in plain text there: "
               "--insecure says that this is meant")  # fmt: skip
    if reload:
        from osmosis_grpc.serve.reload import run_reloading

        raise typer.Exit(run_reloading())
    with records(json) as out:
        from osmosis_grpc.serve import logs

        logs.configure(log_level)
        loops = _load(module or [], validate=not no_validate)

        import anyio

        from osmosis_grpc.engine import EngineConfig
        from osmosis_grpc.serve.process import Options, run_process

        config = EngineConfig(
            max_concurrent=max_concurrent or settings.server.max_concurrent_rollouts,
            record_ttl=record_ttl or settings.server.record_ttl_seconds,
            agent_timeout=settings.server.agent_timeout_seconds if agent_timeout is None else agent_timeout,
        )
        state = state_dir or settings.server.state_dir
        options = Options(
            host=host, grpc_port=grpc_port, http_port=None if no_http else DEFAULT_HTTP_PORT if http_port is None
            else http_port, http_wanted=http_port is not None, allow_targets=allow_target or [],
            legacy_agents=legacy, legacy_listen=listen,
            connect=targets, security=guard, trainers=dialling, log_folder=log,
            state_dir=None if no_journal or state == ":memory:" else Path(state),
            drain_timeout=drain_timeout, json=json,
        )  # fmt: skip
        code = anyio.run(run_process, loops, config, settings, options, out)
    raise typer.Exit(code)


def _usage(problem: str) -> NoReturn:
    typer.echo(f"serve: {problem}", err=True)
    raise typer.Exit(2)


def _load(specs: list[str], *, validate: bool) -> "list[RolloutAgentLoop]":
    from osmosis_grpc.agent.loader import LoadError, load_agent_loops
    from osmosis_grpc.agent.validator import validate_agent_loop

    try:
        loops = load_agent_loops(specs)
    except LoadError as error:
        _usage(str(error))
    findings = [finding for loop in loops for finding in validate_agent_loop(loop).findings] if validate else []
    for finding in findings:
        place = f"{finding.file}:{finding.line}" if finding.file else "?"
        typer.echo(f"{finding.severity}: {finding.code} {place}: {finding.message} ({finding.hint})", err=True)
    if any(finding.severity == "error" for finding in findings):
        typer.echo("serve: not started; --no-validate starts anyway", err=True)
        raise typer.Exit(1)
    return loops


def _secret(text: "SecretStr | None") -> str:
    return text.get_secret_value() if text is not None else ""


def _settings() -> "RolloutSettings":
    from pydantic import ValidationError

    from osmosis_grpc.settings import get_settings, problems

    try:
        return get_settings()
    except ValidationError as error:
        _usage(problems(error))


def _legacy_row(text: str) -> tuple[str, str]:
    """NAME=URL or URL."""
    name, sep, url = text.partition("=")
    if not sep or "/" in name:
        name, url = "", text
    if not url.startswith(("http://", "https://")):
        _usage(f"--legacy-agent {text}: is not http://HOST:PORT or NAME=http://HOST:PORT")
    return name, url


def _target(text: str) -> str:
    _host_port(text, "--connect")
    return text


def _host_port(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        _usage(f"{option} {text}: is not HOST:PORT")
    return host.strip("[]"), int(port)
