"""Implements `serve --ray`: places agent servers on a Ray cluster, shows where they are, and stops them at the end."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_grpc.integrations.ray.servers import RayPlan, RayProblem, RayServers
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.serve.json_output import Records, say_error
from osmosis_grpc.settings.command_line import OptionError
from osmosis_grpc.settings.option import PREFIX
from osmosis_grpc.settings.server_options import SERVER

if TYPE_CHECKING:
    from osmosis_grpc.settings.settings import RolloutServerSettings

LOOK_EVERY = 1.0
"""Seconds between two checks of the servers' addresses."""
SAY_EVERY = 10.0
"""Seconds between two lines about the resources that the servers wait for."""
OF_RAY = tuple(option for option in SERVER if option.group == "Ray" and option.name != "ray")
"""The options that are not passed to the servers."""


def run_on_ray(options: "RolloutServerSettings", security: ServerSecurity, out: Records, *, host_given: bool) -> int:
    """Run the servers until a signal. Return the exit code. Raises OptionError and MissingExtraError."""
    in_memory = options.no_journal or options.state_dir == ":memory:"
    plan = RayPlan(
        name=options.ray_name,
        servers=options.ray_servers,
        resources=resources_of(options.ray_resources),
        host=options.host if host_given else "",
        folder=str(Path.cwd()),
        state="" if in_memory else str(Path(options.state_dir).absolute()),
        environment={name: value for name, value in os.environ.items() if name.startswith(PREFIX)},
    )
    if options.targets_file is not None and not options.targets_file.parent.is_dir():
        file = options.targets_file
        raise OptionError("{targets_file} {file}: there is no folder {folder}", file=file, folder=file.parent)
    try:
        servers = RayServers(plan)
        if not host_given:
            for host in servers.hosts:
                _check_host(security, host)
        servers.reserve()
    except RayProblem as error:
        raise OptionError("{error}", error=error) from None
    stop = threading.Event()
    signals: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        signals.append(number)
        stop.set()
        if len(signals) > 1:
            os._exit(128 + number)  # Ray ends the servers of a driver that has ended

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    if servers.started_cluster:
        out.say("no Ray cluster runs here, so one was started on this machine; it ends with this command")
    try:
        if not _wait_for_resources(servers, plan, stop, out):
            return 0
        servers.start([_arguments(options, number) for number in range(servers.count)])
        _show(servers, options, stop, out)
    except RayProblem as error:
        say_error(f"serve --ray: {error}")
        return 1
    finally:
        servers.stop(options.drain_timeout)
        out.write("stopped")
    return 0


def _check_host(security: ServerSecurity, host: str) -> None:
    try:
        security.check_host(host)
    except ValueError as error:
        text = "{ray}: the servers listen on the addresses of their nodes: {error}"
        raise OptionError(text, error=error) from None


def resources_of(texts: Sequence[str]) -> dict[str, float]:
    """Return the resources that texts such as CPU=0.5 name."""
    return {name: float(amount) for name, _, amount in (text.partition("=") for text in texts)}


def _wait_for_resources(servers: RayServers, plan: RayPlan, stop: threading.Event, out: Records) -> bool:
    """Wait until Ray has reserved the bundles. Return False after a signal."""
    waited = 0.0
    while not servers.reserved(LOOK_EVERY):
        waited += LOOK_EVERY
        if stop.is_set():
            return False
        if waited % SAY_EVERY < LOOK_EVERY:
            wanted = ", ".join(f"{name}={amount:g}" for name, amount in plan.resources.items())
            say_error(f"serve --ray: waits for {servers.count} nodes or bundles with {wanted} (see `ray status`)")
    return True


def _show(servers: RayServers, options: "RolloutServerSettings", stop: threading.Event, out: Records) -> None:
    """Print the addresses of the servers, and write them to --targets-file, after each change until a signal."""
    shown: list[str] | None = None
    while not stop.is_set():
        addresses = servers.addresses()
        if addresses != shown:
            out.write("ready" if shown is None else "moved", servers=addresses, ray_name=options.ray_name)
            out.say(f"{len(addresses)} of {servers.count} agent servers: {', '.join(addresses)}")
            if shown is None:
                file = "" if options.targets_file is None else f", or with the path {options.targets_file}"
                out.say(f"a trainer finds them with ray_targets({options.ray_name!r}){file}")
            if options.targets_file is not None:
                write_targets(options.targets_file, addresses)
            shown = addresses
        stop.wait(LOOK_EVERY)


def write_targets(path: Path, addresses: Sequence[str]) -> None:
    """Write a file that a Trainer watches. The file is replaced as a whole, so that no reader sees a part of it."""
    new = path.with_name(f"{path.name}.new")
    new.write_text("".join(f"{line}\n" for line in ("# written by osmosis-grpc serve --ray", *addresses)))
    new.replace(path)


def _arguments(options: "RolloutServerSettings", number: int) -> list[str]:
    """Return the arguments of one server: those of this command, without Ray's, and with the server's own ports."""
    given = without_ray(sys.argv[1:])
    own = ["--no-ray", "--grpc-port", str(options.grpc_port and options.grpc_port + number)]
    if not options.no_http:
        own += ["--http-port", str(options.http_port and options.http_port + number)]
    if options.metrics_port:
        own += ["--metrics-port", str(options.metrics_port + number)]
    return [*given, *own]


def without_ray(given: Sequence[str]) -> list[str]:
    """Return arguments without the command's name, --ray and the options of --ray."""
    valued = {flag for field in OF_RAY for flag in field.flags}
    rest = list(given[1:] if given[:1] == ["serve"] else given)
    kept: list[str] = []
    while rest:
        argument = rest.pop(0)
        if argument in valued:
            del rest[:1]
        elif argument != "--ray" and argument.partition("=")[0] not in valued:
            kept.append(argument)
    return kept
