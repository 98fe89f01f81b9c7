"""The view command: shows rollouts in a browser, from a state folder or a running server."""

import asyncio
import importlib
import logging
import shlex
import signal
import tempfile
import time
import webbrowser
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from osmosis_grpc.cli.command_options import ViewOptions
from osmosis_grpc.cli.demo_tokens import Words
from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.place import Place, place_of
from osmosis_grpc.cli.recorded import named
from osmosis_grpc.cli.source import Source, open_source
from osmosis_grpc.policies.template_tokenizer import TokenTexts
from osmosis_grpc.protocol.errors import MissingExtraError, missing_extra
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.list_filter import FilterError, ListOptions, pairs_of, rollout_filter
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.serve.json_output import Records, records, say_error, usage_error

PORT = 7700
"""The default port. If it is in use, the system chooses another one."""
EVERY = ListOptions(limit=0)


def run_view(options: ViewOptions, listed: ListOptions, source: SourceOptions, *, json: bool) -> int:
    """Serve the viewer until Ctrl-C, and return the exit code.

    `listed` has the filters for the first table, or for the export.
    """
    source = replace(source, token_file=options.server_token_file)
    with records(json) as out, ExitStack() as stack:
        try:
            app: Any = importlib.import_module("osmosis_grpc.viewer.app")
        except ModuleNotFoundError as error:
            usage_error("view", f"{missing_extra('it', 'server')} (there is no {error.name})")
        if options.single_file and options.export is None:
            usage_error("view", "--single-file needs --export FILE")
        token = _token(options)
        place, texts = _place(options, source, stack)
        texts = _texts(options.tokenizer) or texts
        opened = open_source("view", source, place)
        try:
            if options.export is not None:
                return asyncio.run(_export(opened, options.export, listed, out, single_file=options.single_file))
            shown_with = {"words": place.words, "texts": texts, "metrics": _metrics(options, source, place)}
            return asyncio.run(_view(app, opened, options, listed, token, shown_with, out))
        except FilterError as error:
            usage_error("view", f"--{error.option}: {error}")
        except (SourceError, ValueError) as error:
            hint = "" if options.demo or source.where else "; view --demo shows an example"
            usage_error("view", f"{error}{hint}")
        except OSError as error:
            usage_error("view", f"{error}; --port chooses another port")
        except KeyboardInterrupt:
            return 130


async def _export(source: Source, target: str, listed: ListOptions, out: Records, *, single_file: bool) -> int:
    """Write the pages to files, and return the exit code. Raises SourceError, FilterError and OSError."""
    export: Any = importlib.import_module("osmosis_grpc.viewer.export")
    write = export.write_file if single_file else export.write_folder
    async with source:
        try:
            done = await write(source, Path(target), listed, say_error)
        except export.ExportError as error:
            say_error(f"view: --export {target}: {printable(str(error))}")
            return 1
    out.write("exported", path=target, rollouts=done.rollouts, files=done.files, bytes=done.bytes)
    out.say(f"{done.rollouts} rollouts, {done.bytes / 1e6:.1f} MB, in {printable(target)}")
    if not single_file:
        out.say(f"To look at them: python -m http.server --directory {shlex.quote(target)}")
    return 0


async def _view(
    app: Any,
    source: Source,
    options: ViewOptions,
    listed: ListOptions,
    token: str,
    shown_with: dict[str, Any],
    out: Records,
) -> int:
    """Serve until SIGINT or SIGTERM. Raises SourceError with advice if the source cannot be read."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    given = {"host": options.host, "token": token, **shown_with}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(source)
        if options.rollout is None:
            await source.page(rollout_filter(listed, time.time()), limit=1)
        else:
            options = replace(options, rollout=(await named(source, options.rollout)).rollout_id)
        try:
            port = PORT if options.port is None else options.port
            http = await stack.enter_async_context(app.serve_viewer(source, port=port, **given))
        except OSError:
            if options.port is not None:
                raise
            http = await stack.enter_async_context(app.serve_viewer(source, port=0, **given))
        address = _address(http.address, options.rollout, listed=listed)
        out.write("ready", url=address, source=source.where)
        shown = _address(http.address, options.rollout, "...", listed) if token else address
        out.say(f"{source.where}\n{shown}\nCtrl-C stops the viewer.")
        if options.open:
            await asyncio.to_thread(webbrowser.open, _address(http.address, options.rollout, token, listed))
        await stop.wait()
    return 0


def _metrics(options: ViewOptions, source: SourceOptions, place: Place) -> Any:
    """Return the metrics that --metrics names; None without it. A wrong address ends the command."""
    if options.metrics is None:
        return None
    if not place.server:
        usage_error("view", "--metrics needs --from HOST:PORT: a folder has no metrics")
    try:
        token = Path(source.token_file).read_text().strip() if source.token_file else ""
        return importlib.import_module("osmosis_grpc.viewer.metrics").scraped(options.metrics, token, source.ca)
    except (ValueError, OSError) as error:
        usage_error("view", f"--metrics: {error}")


def _texts(tokenizer: str | None) -> TokenTexts | None:
    """Return the token texts of --tokenizer; None without it. A folder without a tokenizer ends the command."""
    try:
        return None if tokenizer is None else TokenTexts(tokenizer)
    except (MissingExtraError, OSError, ValueError) as error:
        usage_error("view", f"--tokenizer {tokenizer}: {error}")


def _address(server: str, rollout: str | None, token: str = "", listed: ListOptions = EVERY) -> str:
    """Return the URL of the table, or of a rollout. A failed rollout opens at the turn that failed."""
    shown = [("id", rollout)] if rollout is not None else [pair for pair in pairs_of(listed) if pair[0] != "limit"]
    if rollout is None and listed.limit:
        shown.append(("limit", str(listed.limit)))
    query = urlencode(shown + ([("token", token)] if token else []), safe=".")
    path = "" if rollout is None else "rollout"
    return f"http://{server}/{path}{'?' * bool(query)}{query}{'' if rollout is None else '#failed'}"


def _place(options: ViewOptions, source: SourceOptions, stack: ExitStack) -> tuple[Place, TokenTexts | Words | None]:
    """Return the place to show, and its token texts. --demo writes to a folder that is deleted at the end."""
    if not options.demo:
        return place_of("view", source.where), None
    if source.where is not None:
        usage_error("view", "--from and --demo exclude each other; name one of them")
    from osmosis_grpc.cli.view_demo import write_demo

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="osmosis-view-demo-"))
    say_error("running twelve rollouts of the demo, two of which fail on purpose ...")
    logging.getLogger("osmosis_grpc.engine.agent_calls").setLevel(logging.ERROR)  # the pages show the tracebacks
    return Place(Path(folder)), asyncio.run(write_demo(Path(folder)))


def _token(options: ViewOptions) -> str:
    """Return the token that a browser has to send, or "" if it needs none."""
    if options.token is not None and options.token_file is not None:
        usage_error("view", "--token and --token-file exclude each other; name one of them")
    token = options.token or ""
    if options.token_file is not None:
        try:
            token = Path(options.token_file).read_text().strip()
        except OSError as error:
            usage_error("view", f"--token-file: {options.token_file} cannot be read: {error.strerror}")
    if not token and (options.token is not None or options.token_file is not None):
        usage_error("view", "the token is empty; name a secret")
    return token
