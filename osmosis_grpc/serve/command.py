"""The serve command: checks its options and starts the server.

osmosis_grpc.settings.server_options declares the options, and osmosis_grpc.serve.process runs the server. Heavy imports
are in the functions, so that --help is fast.
"""

from typing import TYPE_CHECKING

import typer

from osmosis_grpc.serve.options import (
    config_sources,
    credentials_to_show,
    naming,
    security_for_callers,
    usage_errors,
    warn_about_settings,
)
from osmosis_grpc.settings.command_line import Line, OptionError
from osmosis_grpc.settings.compound_values import sampling_parameter
from osmosis_grpc.settings.typer_command import add_command

if TYPE_CHECKING:
    from osmosis_grpc.agent import RolloutAgentLoop
    from osmosis_grpc.agent.runnable import Runnable
    from osmosis_grpc.network.credentials import Credentials
    from osmosis_grpc.network.server_security import ServerSecurity
    from osmosis_grpc.settings.settings import RolloutServerSettings, RolloutSettings


def run(line: Line) -> None:
    """Host agent loops over gRPC, and over the legacy HTTP contract.

    Exit codes: 0 the server stopped; 1 the server failed, or an agent loop is not valid; 2 an option is wrong, or a
    port or a folder cannot be used; 130 or 143 a second signal ended the server.
    """
    from osmosis_grpc.serve.json_output import records, send_errors
    from osmosis_grpc.serve.workers import VARIABLE
    from osmosis_grpc.settings import logs
    from osmosis_grpc.settings.process_environment import (
        close_memory,
        forget_secrets,
        otel_content,
        prepare_grpc,
        take_variable,
    )
    from osmosis_grpc.settings.settings import command_settings

    prepare_grpc()
    descriptor = take_variable(VARIABLE)
    place = None
    if descriptor is not None:
        from osmosis_grpc.serve.workers.place import place_of

        place = place_of(descriptor)
        send_errors(place.send_error)
    with usage_errors("serve", line):
        settings = command_settings(line)
    if place is not None:
        settings = place.settings(settings)
    elif not settings.server.ray and ((beyond := _beyond(settings.server)) or settings.server.workers > 1):
        raise typer.Exit(_supervise(line, settings, beyond))
    with usage_errors("serve", line, settings):
        security, credentials = _checked(line, settings)
    options, number = settings.server, None if place is None else place.index
    if options.command or options.program:
        close_memory()
    if options.ray:
        from osmosis_grpc.serve.on_ray import run_on_ray

        given = "host" in options.model_fields_set
        with records(options.json_records) as out, usage_errors("serve", line, settings):
            raise typer.Exit(run_on_ray(options, security, out, host_given=given))
    if options.reload:
        from osmosis_grpc.serve.reload import run_reloading

        raise typer.Exit(run_reloading())
    if place is None and (state := options.state_folder) is not None:
        from osmosis_grpc.serve.predecessor import wait_for_predecessor

        wait_for_predecessor(state)
    forget_secrets()
    with records(options.json_records) as out, logs.configured(options.log_level, number):
        if not number:
            warn_about_settings(line, settings)
        loops = _load(line, settings)

        import anyio

        from osmosis_grpc.serve.process import run_process
        from osmosis_grpc.server import ServerConfig

        config = ServerConfig(
            max_concurrent=options.max_concurrent_rollouts,
            max_concurrent_per_owner=options.max_concurrent_per_owner,
            max_attachments_per_owner=options.max_attachments_per_owner,
            record_ttl=options.record_ttl_seconds,
            disk_budget=int(options.disk_budget_gib * 1024**3),
            memory_budget=options.memory_budget_mib * 1024**2,
            agent_timeout=options.agent_timeout_seconds,
            pin_sampling=dict(map(sampling_parameter, options.pin_sampling)),
            allow_targets=options.allow_target,
            reflection=not options.no_reflection,
            max_metadata_bytes=options.max_metadata_size_bytes,
            max_connections=options.max_connections,
            max_connection_age=options.max_connection_age_seconds,
            otel=options.otel,
            otel_content=options.otel and otel_content(),
        )
        with usage_errors("serve", line, settings):
            code = anyio.run(run_process, loops, config, settings, security, credentials, out, place)
    raise typer.Exit(code)


def add_serve(app: typer.Typer, name: str = "serve") -> None:
    """Add the command to an application."""
    add_command(
        app, name, "-m MODULE:ATTR | --env KIND:NAME | --program NAME | --command COMMAND [OPTIONS]", run, of="serve"
    )


def _beyond(options: "RolloutServerSettings") -> list[int]:
    """Return the workers beyond --workers that have rollouts to finish. Usually there are none."""
    from pathlib import Path

    from osmosis_grpc.storage.state_folders import worker_folders

    if options.no_journal or not worker_folders(Path(options.state_dir)):
        return []
    from osmosis_grpc.serve.workers.plan import unfinished_beyond

    return unfinished_beyond(options)


def _supervise(line: Line, settings: "RolloutSettings", beyond: list[int]) -> int:
    """Run the workers, and return the exit code. This process imports neither gRPC nor the code of agents."""
    from osmosis_grpc.serve.json_output import records
    from osmosis_grpc.serve.predecessor import wait_for_predecessor
    from osmosis_grpc.serve.workers.plan import plan
    from osmosis_grpc.serve.workers.supervisor import run_workers
    from osmosis_grpc.settings import logs
    from osmosis_grpc.settings.process_environment import close_memory, environment, forget_secrets

    options = settings.server
    if options.command:
        close_memory()
    env = environment()
    forget_secrets()
    if (state := options.state_folder) is not None:
        wait_for_predecessor(state)
    with usage_errors("serve", line, settings):
        planned = plan(options, beyond)
    with records(options.json_records) as out, logs.configured(options.log_level):
        return run_workers(options, planned, env, out)


def _checked(line: Line, settings: "RolloutSettings") -> "tuple[ServerSecurity, Credentials]":
    """Return the security for callers and the credentials for trainers. Raises OptionError."""
    from osmosis_grpc.network.target_policy import TargetPolicy, is_loopback
    from osmosis_grpc.settings.compound_values import commands_of
    from osmosis_grpc.settings.option import split_host_port

    options = settings.server
    if not (options.module or options.env or options.legacy_agent or options.command or options.program):
        raise OptionError(
            "there is nothing to host: name an agent loop with -m/--module MODULE:ATTR, an --env, a --program or a "
            "--command"
        )
    for name, hosts in (("reward", True), ("strict_exit", True), ("program_context", False)):
        if name in options.model_fields_set and not (options.program or (hosts and options.command)):
            raise OptionError(f"{{{name}}} goes with {{program}}{' or {command}' if hosts else ''}")
    commands = len(commands_of(options.command))
    if options.command_name and len(options.command_name) != commands:
        names = len(options.command_name)
        raise OptionError(
            "{command_name}: name each {command}, in their order; there are {names} for {commands}",
            names=names,
            commands=commands,
        )
    for switch, name in (("no_journal", "state_dir"), ("no_http", "http_port")):
        same_place = line.has("server", switch) == line.has("server", name)
        if getattr(options, switch) and name in options.model_fields_set and (same_place or line.has("server", name)):
            raise OptionError(f"{{{switch}}} does not go with {{{name}}}")
    with naming("{allow_target}: {problem}"):
        TargetPolicy(loopback=True, allow=options.allow_target)
    security = security_for_callers(options, line, admin=options.secrets("admin_token"))
    options.secret("legacy_agent_token")  # raises OptionError for a bad file, before the server starts
    credentials = credentials_to_show(
        options.secret("connect_token"),
        options.trainer_ca,
        options.trainer_cert,
        options.trainer_key,
        tls=options.connect_tls,
        insecure=options.insecure,
        names=("{connect_token}", "{trainer_ca}", "{trainer_cert}", "{trainer_key}"),
    )
    with naming("{connect} {problem}: {connect_tls}, or {insecure}"):
        for target in options.connect:
            credentials.check_target(target)
    if options.legacy_agent and not options.insecure and not is_loopback(split_host_port(options.legacy_listen)[0]):
        raise OptionError(
            "{legacy_listen} {value} is not loopback, and keys would travel in plain text there; {insecure} allows "
            "that",
            value=options.legacy_listen,
        )
    for name in ("ray_servers", "ray_resources", "ray_name", "targets_file"):
        if name in options.model_fields_set and not options.ray:
            raise OptionError(f"{{{name}}} goes with {{ray}}")
    for name in ("reload", "view", "connect"):
        if options.ray and getattr(options, name):
            raise OptionError(f"{{{name}}} does not go with {{ray}}")
    if options.ray and options.workers > 1:
        raise OptionError(
            "{workers} does not go with {ray}, where each server is one process: leave it out; {ray_servers} places "
            "several servers, also on one node"
        )
    _check_view(options, security)
    return security, credentials


def _check_view(options: "RolloutServerSettings", security: "ServerSecurity") -> None:
    """Raise OptionError if the viewer cannot be served. Its pages show the rollouts of all callers."""
    from osmosis_grpc.network.target_policy import is_loopback
    from osmosis_grpc.protocol.errors import missing_extra

    if not options.view:
        if "view_port" in options.model_fields_set:
            raise OptionError("{view_port} goes with {view}")
        return
    if options.no_journal or options.state_dir == ":memory:":
        raise OptionError("{view} reads the journal, so it does not go with {no_journal} or {state_dir} :memory:")
    if not security.admin_tokens and (security.authenticates or not is_loopback(options.host)):
        raise OptionError("{view} shows the rollouts of all callers, so it needs a token: {admin_token_file} FILE")
    try:
        import osmosis_grpc.viewer.app  # noqa: F401
    except ModuleNotFoundError as error:
        missing = missing_extra("it", "server")
        raise OptionError("{view}: {missing} (there is no {name})", missing=missing, name=error.name) from None


def _load(line: Line, settings: "RolloutSettings") -> "list[RolloutAgentLoop | Runnable]":
    """Load and check the agents. If one cannot be loaded, the exit code is 2; if one is not valid, it is 1."""
    from osmosis_grpc.agent.loader import LoadError, as_agents
    from osmosis_grpc.agent.workflow_validator import validate_agent
    from osmosis_grpc.environments.loading import load_hosted
    from osmosis_grpc.environments.spec import PREFIX
    from osmosis_grpc.serve.json_output import say_error

    options = settings.server
    with usage_errors("serve", line, settings, LoadError):
        named = [*options.module, *(PREFIX + each for each in options.env)]
        items = load_hosted(named, config_sources(options, line))
    findings = [] if options.no_validate else [each for item in items for each in validate_agent(item).findings]
    for finding in findings:
        place = f"{finding.file}:{finding.line}" if finding.file else "?"
        say_error(f"{finding.severity}: {finding.code} {place}: {finding.message} ({finding.hint})")
    if any(finding.severity == "error" for finding in findings):
        say_error("serve: not started; --no-validate starts anyway")
        raise typer.Exit(1)
    with usage_errors("serve", line, settings, LoadError):
        return as_agents(items)
