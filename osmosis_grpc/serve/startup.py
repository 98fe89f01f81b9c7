"""Prepares the start of `serve` and of the gateway: reads settings and security, reports warnings and usage errors."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import typer

from osmosis_grpc.serve.json_output import say_error
from osmosis_grpc.settings.line import Line

if TYPE_CHECKING:
    from osmosis_grpc.network.server_security import ServerSecurity
    from osmosis_grpc.settings.settings import RolloutServerSettings, RolloutSettings

log = logging.getLogger(__name__)


def read_settings(command: str, line: Line) -> "RolloutSettings":
    """Return the settings of a command line. A wrong value ends the command with exit code 2."""
    from osmosis_grpc.settings.settings import command_settings

    try:
        settings = command_settings(line)
    except ValueError as error:
        usage_error(command, str(error))
    if settings.server.local and line.has("server", "token"):
        usage_error(command, "--local asks no caller for a token, and --token is one: leave one of them out")
    return settings


@contextlib.contextmanager
def usage_errors(
    command: str, line: Line, settings: "RolloutSettings", kind: type[Exception] = ValueError, hint: str = ""
) -> Iterator[None]:
    """Turn an exception of type `kind` into a usage error, which ends the command with exit code 2.

    The message names the option. If the value came from a variable, the message names the variable instead.
    """
    from osmosis_grpc.settings.settings import by_source

    try:
        yield
    except kind as error:
        usage_error(command, by_source(f"{error}{hint}", line, settings))


def usage_error(command: str, problem: str) -> NoReturn:
    """Print a problem of the command line and end with exit code 2."""
    say_error(f"{command}: {problem}")
    raise typer.Exit(2)


def server_security(options: "RolloutServerSettings", *, admin: Sequence[str] = ()) -> "ServerSecurity":
    """Return the security for callers. Raises ValueError naming the option, also if the host needs more security."""
    from osmosis_grpc.network.target_policy import is_loopback
    from osmosis_grpc.serve.security_options import check_trace, naming, server_security_from_options
    from osmosis_grpc.settings.environment import grpc_tracers

    if not options.unsafe_trace:
        check_trace(grpc_tracers())
    security = server_security_from_options(
        options.tokens, options.tls_cert, options.tls_key, options.tls_client_ca, insecure=options.insecure, admin=admin
    )
    with naming("--host "):
        security.check_host(options.host)
    if options.local and not is_loopback(options.host):
        raise ValueError(f"--local is for loopback, and --host is {options.host}")
    return security


def warn_about_settings(line: Line) -> None:
    """Log each variable with our prefix that has no effect, and each secret that the command line shows."""
    from osmosis_grpc.settings.settings import shown_secrets, unknown_variables

    for name, nearest in unknown_variables():
        log.warning("the variable %s is unknown, and ignored%s", name, f": is {nearest} meant?" if nearest else "")
    if line.has("server", "skip_register"):
        log.info("--skip-register has no effect: this server is registered with no platform")
    for flag, file in shown_secrets(line):
        log.warning("%s: every program on this machine can read a command line; use %s", flag, file)
