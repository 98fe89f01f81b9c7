"""Declares the options that say where rollouts are: a running server, a state folder or a run. Imports only typer."""

from dataclasses import dataclass

from osmosis_grpc.cli.option_groups import choice, with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Where a command finds rollouts, and its credentials. Each field is an option of the command line."""

    server: str | None = choice("--server HOST:PORT", "Ask this running server.", show_default=False)
    state_dir: str | None = choice(
        "--state-dir DIR",
        "Read this state folder; a server may be using it. "
        "Default: ./.osmosis/state if it has a journal, else the server 127.0.0.1:50051.",
    )
    run: str | None = choice("--run RUN", "Read the folder of this run of test or eval, or last.")
    token: str | None = choice("--token SECRET", "Token to show to the server. Prefer the file or the variable.")
    token_file: str | None = choice("--token-file FILE", "File that holds --token.")
    tls: bool = choice("--tls", "Speak TLS with the server.", False)
    ca: str | None = choice("--ca FILE", "CA of the server; implies --tls.")
    cert: str | None = choice("--cert FILE", "Certificate to show to the server; implies --tls.")
    key: str | None = choice("--key FILE", "The private key of --cert.")
    insecure: bool = choice("--insecure", "Send the token to another machine without TLS.", False)


with_source = with_options(SourceOptions, "source")
"""Gives a command the options of SourceOptions. The function gets them as its parameter `source`."""
with_journal = with_options(SourceOptions, "source", without=("run",))
"""Gives a command the same options without --run."""
with_server = with_options(SourceOptions, "source", without=("state_dir", "run"))
"""Gives a command the options that name a running server."""
with_view_server = with_options(SourceOptions, "source", without=("server", "state_dir", "run", "token", "token_file"))
"""Gives a command only the options for the connection to a server. Its other options have names of their own."""
