"""Converts the options of `serve` and the gateway to security, credentials and the sources of configurations.

A problem raises an OptionError. usage_errors() prints it, and names each option as the user gave it.
"""

import contextlib
import logging
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_grpc.serve.json_output import usage_error
from osmosis_grpc.settings.command_line import OPTIONS, Line, OptionError

if TYPE_CHECKING:
    from osmosis_grpc.agent.config_sources import ConfigSources
    from osmosis_grpc.network.credentials import Credentials
    from osmosis_grpc.network.server_security import ServerSecurity
    from osmosis_grpc.settings.settings import RolloutServerSettings, RolloutSettings

log = logging.getLogger(__name__)

HARMLESS_TRACERS = frozenset(
    (
        "bdp_estimator",
        "connectivity_state",
        "dns_resolver",
        "flowctl",
        "http_keepalive",
        "pick_first",
        "resource_quota",
        "subchannel",
        "subchannel_pool",
        "timer",
    )
)
"""Tracers of gRPC that print no messages. Of the others, `all`, `api` and `http` print metadata, `tcp` every byte."""
VARIABLES = {option.name: option.variable for option in OPTIONS.values() if option.part == "server"}


@contextlib.contextmanager
def usage_errors(
    command: str,
    line: Line,
    settings: "RolloutSettings | None" = None,
    kind: type[Exception] = OptionError,
    text: str = "{error}",
) -> Iterator[None]:
    """Print an exception of type `kind` as a usage error, and end the command with exit code 2.

    An exception that is no OptionError becomes one with this `text`.
    """
    from osmosis_grpc.settings.settings import option_names

    try:
        yield
    except kind as error:
        problem = error if isinstance(error, OptionError) else OptionError(text, error=error)
        usage_error(command, problem.named(option_names(line, settings)))


@contextlib.contextmanager
def naming(text: str) -> Iterator[None]:
    """Turn a ValueError into an OptionError with this text, in which {problem} stands for the error's message."""
    try:
        yield
    except ValueError as error:
        raise OptionError(text, problem=error) from None


def security_for_callers(
    options: "RolloutServerSettings", line: Line | None = None, *, admin: Sequence[str] = ()
) -> "ServerSecurity":
    """Return the tokens and client certificates to accept, and the certificate of this server.

    Raises:
        OptionError: A file or a token cannot be used, or the host needs more security.
    """
    from osmosis_grpc.network.server_security import ServerSecurity
    from osmosis_grpc.network.target_policy import is_loopback
    from osmosis_grpc.network.tls import ServerTls, read_pems
    from osmosis_grpc.settings.process_environment import grpc_tracers

    if options.local and line is not None and line.has("server", "token"):
        raise OptionError("{local} asks no caller for a token, and {token} is one: leave one of them out")
    if not options.unsafe_trace:
        check_trace(grpc_tracers())
    cert, key, client_ca = options.tls_cert, options.tls_key, options.tls_client_ca
    if (cert is None) != (key is None):
        raise OptionError("{tls_cert} and {tls_key} go together")
    if client_ca is not None and cert is None:
        raise OptionError("{tls_client_ca} needs {tls_cert} and {tls_key}")
    tls = None
    if cert is not None and key is not None:
        with naming("{tls_cert}, {tls_key}, {tls_client_ca}: {problem}"):
            read_pems(cert, key, client_ca)
        tls = ServerTls(cert=cert, key=key, client_ca=client_ca)
    tokens = options.tokens
    with naming("{token}: {problem}"):
        security = ServerSecurity(tokens, tls=tls, insecure=options.insecure, admin_tokens=admin)
    with naming("{host} {problem}"):
        security.check_host(options.host)
    if options.local and not is_loopback(options.host):
        raise OptionError("{local} is for loopback, and {host} is {value}", value=options.host)
    return security


def credentials_to_show(
    token: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    *,
    tls: bool,
    insecure: bool,
    names: tuple[str, str, str, str],
) -> "Credentials":
    """Return the credentials with which this process connects to a server. Raises OptionError.

    `names` are the fields of the first four parameters' options, for the text of an OptionError.
    """
    from osmosis_grpc.network.credentials import Credentials
    from osmosis_grpc.network.tls import ClientTls, read_pems

    if (cert is None) != (key is None):
        raise OptionError(f"{names[2]} and {names[3]} go together")
    with naming(f"{', '.join(names[1:])}: {{problem}}"):
        read_pems(cert, key, ca)
    files = ClientTls(ca=ca, cert=cert, key=key) if tls or ca or cert else None
    with naming(f"{names[0]}: {{problem}}"):
        return Credentials(token=token, tls=files, insecure=insecure)


def check_trace(tracers: str) -> None:
    """Raise OptionError if a tracer may print the credentials of callers. `tracers` is the value of GRPC_TRACE."""
    named = {name.strip() for name in tracers.split(",") if name.strip() and not name.strip().startswith("-")}
    if named - HARMLESS_TRACERS:
        names = ",".join(sorted(named - HARMLESS_TRACERS))
        raise OptionError("GRPC_TRACE={names} may print bearer tokens; unset it, or pass {unsafe_trace}", names=names)


def config_sources(options: "RolloutServerSettings", line: Line | None = None) -> "ConfigSources":
    """Return the sources of configurations that the settings name. Raises LoadError for a file that cannot be used.

    `line` tells which options come from the command line. Without it, all come from the environment.
    """
    from osmosis_grpc.agent.config_sources import ConfigSources, Texts
    from osmosis_grpc.agent.loader import LoadError
    from osmosis_grpc.agent.workflow_toml import WorkflowToml, WorkflowTomlError

    try:
        toml = WorkflowToml() if options.config_file is None else WorkflowToml.read(options.config_file)
    except WorkflowTomlError as error:
        raise LoadError(str(error)) from None
    given: dict[str, Any] = {} if line is None else line.given["server"]
    in_file = {} if line is None else line.in_file
    places = {name: in_file.get(variable, variable) for name, variable in VARIABLES.items()}

    def before(name: str) -> Texts:
        texts: tuple[str, ...] = getattr(options, name)
        return Texts(values=texts[: len(texts) - len(given.get(name, ()))], place=places[name])

    return ConfigSources(
        toml=toml,
        workflow=given.get("workflow_config", ()),
        grader=given.get("grader_config", ()),
        grader_class=options.grader or "",
        workflow_variable=before("workflow_config"),
        grader_variable=before("grader_config"),
        grader_class_place="--grader" if "grader" in given else places["grader"],
    )


def warn_about_settings(line: Line, settings: "RolloutSettings") -> None:
    """Log each variable with our prefix that has no effect, and each secret that others on this machine can read."""
    from osmosis_grpc.settings.settings import readable_secrets, shown_secrets, unknown_variables

    for name, nearest in unknown_variables():
        log.warning("the variable %s is unknown, and ignored%s", name, f": is {nearest} meant?" if nearest else "")
    if line.has("server", "skip_register"):
        log.info("--skip-register has no effect: this server is registered with no platform")
    for flag, file in shown_secrets(line):
        log.warning("%s: every program on this machine can read a command line; use %s", flag, file)
    for path in readable_secrets(settings):
        log.warning("%s: every user of this machine can read it; run chmod 600 %s", path, shlex.quote(str(path)))
