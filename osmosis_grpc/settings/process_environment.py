"""Reads and changes the process's environment: hides secrets, and selects the variables that programs and gRPC see."""

import contextlib
import ctypes
import logging
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from osmosis_grpc.settings.command_line import OPTIONS
from osmosis_grpc.settings.option import Secret

log = logging.getLogger(__name__)
_PR_SET_DUMPABLE = 4


def forget_secrets() -> None:
    """Remove every secret from the environment of this process. Call it after the settings were read.

    Agents run in this process, and the output of their tools goes into the trajectory and the journal. So a tool that
    runs `env` or reads /proc/PID/environ must find no secret.
    """
    for name in list(os.environ):
        option = OPTIONS.get(name.upper())
        if option is not None and option.kind is Secret:
            _overwrite(name)
            del os.environ[name]


def environment() -> dict[str, str]:
    """Return a copy of the environment, including secrets, for processes of the same server."""
    return dict(os.environ)


def take_variable(name: str) -> str | None:
    """Remove a variable from the environment, and return its value."""
    return os.environ.pop(name, None)


_FOR_PROGRAMS = re.compile(
    "PATH|PYTHONPATH|LD_LIBRARY_PATH|USER|LOGNAME|SHELL|TZ|LANG|LANGUAGE|LC_[A-Z]+|VIRTUAL_ENV|CONDA_PREFIX"
    "|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE"
)
"""The variables that every program gets. HOME is not among them, because each program has its own."""


def program_environment(names: Iterable[str]) -> dict[str, str]:
    """Return the variables that the programs of `serve --command` get: those of a fixed list, and those in `names`."""
    kept = {name: value for name, value in os.environ.items() if _FOR_PROGRAMS.fullmatch(name) or name in set(names)}
    return kept | {"PATH": program_path()}


def otel_exporter() -> str:
    """Return the name of the traces exporter that OpenTelemetry's variables select; by default the one for OTLP."""
    name = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    if name != "otlp":
        return name
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    return "otlp_proto_http" if (protocol or "grpc").startswith("http") else "otlp_proto_grpc"


def otel_content() -> bool:
    """Return whether spans may contain messages, according to OpenTelemetry's variable for generative AI."""
    given = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
    return given.lower() in ("true", "span_only", "span_and_event")


def has_otel_name() -> bool:
    """Return whether OpenTelemetry's variables give this process a service name."""
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )


def program_path() -> str:
    """Return the PATH of programs that this process starts. It includes the folder of this Python.

    The folder is first if this Python is in a virtual environment and no environment is activated, otherwise last.
    """
    path, own = os.environ.get("PATH") or os.defpath, str(Path(sys.executable).parent)
    activated = [f"{os.environ[name]}/bin" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    first = sys.prefix != sys.base_prefix and not set(activated) & set(path.split(os.pathsep))
    return os.pathsep.join((own, path) if first else (path, own))


def _overwrite(name: str) -> None:
    """Overwrite a variable's value in memory, because /proc/PID/environ shows the initial environment."""
    with contextlib.suppress(AttributeError, OSError):
        getenv = ctypes.CDLL(None).getenv
        getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
        place = getenv(os.fsencode(name))
        if place:
            ctypes.memset(place, ord("-"), len(ctypes.string_at(place)))


def grpc_tracers() -> str:
    """Return GRPC_TRACE: the tracers that gRPC itself prints."""
    return os.environ.get("GRPC_TRACE", "")


def prepare_grpc() -> None:
    """Set variables that gRPC reads at its import, unless the user has set them. Call it before gRPC is imported.

    The variables switch off gRPC's fork handlers, which do nothing for a working server, and sometimes cause a
    segmentation fault in the child. They also switch off the INFO lines of gRPC Core, which writes one for each failed
    TLS handshake, so that every host that reaches the port could fill the log.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    if "GRPC_TRACE" not in os.environ:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def close_memory() -> None:
    """Make /proc/PID/environ and /proc/PID/mem of this process unreadable for programs of the same user. Linux only.

    This does not affect programs that this process starts. Root can still read both files. The same user can no longer
    attach a debugger, and a crash leaves no core dump.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        failed = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (OSError, AttributeError) as error:
        log.warning("the programs of --command can read the environment of this server: %s", error)
    else:
        if failed:
            log.warning("the programs of --command can read the environment of this server: prctl() is refused")
