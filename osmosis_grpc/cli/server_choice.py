"""Chooses the running server that a command's options name, with the credentials for it."""

from osmosis_grpc.cli.environment import sets_options
from osmosis_grpc.cli.source_options import SourceOptions
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.records.reading.chosen_server import ChosenServer
from osmosis_grpc.serve.security_options import credentials_from_options
from osmosis_grpc.serve.startup import usage_error
from osmosis_grpc.settings.option import host_port

SERVER = "127.0.0.1:50051"
"""The server that commands ask if no option names another one."""
NAMES = {"view": ("--follow", "--server-token")}
"""The commands with other names for --server and --token."""


def chosen_server(command: str, options: SourceOptions, why: str = "") -> ChosenServer:
    """Return the server of the options. A wrong option ends the command with exit code 2."""
    try:
        target = host_port(options.server or SERVER)
        credentials = _credentials(options)
        credentials.check_target(target)
        return ChosenServer(target, credentials, why, NAMES.get(command, ("--server", "--token")))
    except ValueError as error:
        usage_error(command, str(error).replace("--target-", "--").replace("pass insecure=True", "pass --insecure"))


def _credentials(options: SourceOptions) -> Credentials:
    """Return the credentials of the options, or else of the variables OSMOSIS_ROLLOUT_CLIENT_*. Raises ValueError."""
    names = ("token", "token_file", "tls", "ca", "cert", "key")
    given = {name: value for name in names if (value := getattr(options, name))}
    if not given and not sets_options():
        return Credentials(insecure=options.insecure)
    from pydantic import ValidationError

    from osmosis_grpc.settings.settings import RolloutClientSettings, problems

    try:
        known = RolloutClientSettings(**given)
    except ValidationError as error:
        raise ValueError(problems(error)) from None
    return credentials_from_options(
        known.secret("token"),
        known.ca,
        known.cert,
        known.key,
        tls=known.tls,
        insecure=options.insecure,
        names=("--token", "-"),
    )
