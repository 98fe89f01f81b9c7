"""The conformance command: checks an agent server or a trainer against the protocol."""

import asyncio
import json as json_text
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osmosis_grpc.cli.conformance_options import ConformanceOptions
from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.source import chosen_server
from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.network.credentials import Credentials, channel
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.serve.json_output import Records, records, say_error, usage_error


def run_conformance(options: ConformanceOptions, source: SourceOptions, *, json: bool) -> int:
    """Run the cases and report. Return the exit code."""
    from osmosis_grpc.testing.conformance.protobuf_data import CaseError

    with records(json) as out:
        try:
            return _run(options, source, out)
        except CaseError as error:
            usage_error("conformance", f"a case is wrong: {printable(str(error), keep=chr(10))}")
        except MissingExtraError as error:
            usage_error("conformance", str(error))
        except KeyboardInterrupt:
            return 130


def _run(options: ConformanceOptions, source: SourceOptions, out: Records) -> int:
    from osmosis_grpc.testing.conformance.cases import load
    from osmosis_grpc.testing.conformance.runner import chosen_cases, known_failures
    from osmosis_grpc.testing.conformance.server_session import KINDS as SERVER
    from osmosis_grpc.testing.conformance.trainer_session import KINDS as TRAINER

    side = "trainer" if options.trainer is not None else "server"
    if side == "server" and source.server is None and not options.list_:
        usage_error("conformance", "name what to test: --server HOST:PORT or --trainer COMMAND")
    if options.trainer is not None and source.server is not None:
        usage_error("conformance", "--server and --trainer cannot be used together")
    cases = load(side, {"server": SERVER, "trainer": TRAINER}[side], Path(options.cases) if options.cases else None)
    modes = [*(options.over or _modes(options, side)), "call"]
    try:
        chosen = chosen_cases(
            cases, options.case, modes if not options.list_ else ["callback", "attach", "accept", "call"]
        )
        known = known_failures(_text(options.known_failures)) if options.known_failures else {}
    except (OSError, UnicodeDecodeError, ValueError) as error:
        usage_error("conformance", printable(str(error)))
    if options.list_:
        for case in {case.name: case for case, _ in chosen}.values():
            out.write("case", case=case.name, side=case.side, kind=case.kind, over=case.over, attacks=case.attacks)
            out.say(f"{case.name:<44} {','.join(case.over):<22} {case.attacks}")
        return 0
    for option, path in (("--report", options.report), ("--junit", options.junit)):
        if path is not None and (not Path(path).parent.is_dir() or Path(path).is_dir()):
            usage_error(
                "conformance", printable(f"{option} {path}: is a folder, or is in a folder that does not exist")
            )
    if not chosen:
        usage_error("conformance", f"no case runs over {', '.join(modes[:-1])}")
    return asyncio.run(_tested(options, source, out, chosen, known))


def _modes(options: ConformanceOptions, side: str) -> list[str]:
    every = ["callback", "attach"]
    return every if side == "server" and options.accept is None else [*every, "accept"]


async def _tested(
    options: ConformanceOptions, source: SourceOptions, out: Records, chosen: Any, known: dict[str, str]
) -> int:
    from osmosis_grpc.testing.conformance import report, server_session
    from osmosis_grpc.testing.conformance.report import Result, Unusable

    began = time.monotonic()

    def shown(result: Result) -> None:
        out.write("case", **result.as_data())
        out.say(report.line(result), "31" if result.bad else "")

    kwargs: dict[str, Any] = {"jobs": options.jobs, "known": known, "on_result": shown}
    try:
        if options.trainer is not None:
            from osmosis_grpc.testing.conformance.trainer_session import test_trainer

            name = options.trainer
            results = await test_trainer(options.trainer, chosen, **kwargs)
        else:
            server = chosen_server("conformance", source)
            name, credentials = server.target, server.credentials
            await server.check_listens()
            tokens = {"first": credentials.metadata}
            for which, path in (("second", options.second_token_file), ("admin", options.admin_token_file)):
                if path is not None:
                    tokens[which] = Credentials(token=_token(f"--{which}-token-file", path), insecure=True).metadata
            wanted = server_session.ServerOptions(
                target=name, host=options.host, accept=options.accept, tokens=tokens, plain=credentials.tls is None
            )
            size = {"grpc__max_receive_message_length": -1, "grpc__max_send_message_length": -1}

            def new_channel() -> Any:
                own = client_options(grpc__enable_retries=0, grpc__use_local_subchannel_pool=1, **size)
                return channel(name, credentials.tls, own)

            async with server_session.server_under_test(wanted, new_channel) as under_test:
                results = await server_session.test_server(under_test, chosen, **kwargs)
    except (Unusable, SourceError) as error:
        say_error(f"conformance: {printable(str(error), keep=chr(10))}")
        return 2
    return _reported(options, out, results, name, time.monotonic() - began)


def _reported(options: ConformanceOptions, out: Records, results: Sequence[Any], name: str, seconds: float) -> int:
    """Print and write the reports. Return the exit code."""
    from osmosis_grpc.testing.conformance import report

    for text in report.failures(results):
        out.say(text)
    out.say("")
    for text in report.skipped(results):
        out.say(text)
    out.say(report.summary(results, seconds))
    whole = report.as_json(results, seconds, name)
    out.write("summary", **{key: whole[key] for key in ("under_test", "seconds", "counts")})
    if options.report:
        Path(options.report).write_text(json_text.dumps(whole, ensure_ascii=False, indent=2), encoding="utf-8")
    if options.junit:
        Path(options.junit).write_text(report.as_junit(results, seconds, name), encoding="utf-8")
    return 1 if any(result.bad for result in results) else 0


def _token(option: str, path: str) -> str:
    try:
        return _text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        usage_error("conformance", printable(f"{option}: {path} cannot be used: {reason}"))


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
