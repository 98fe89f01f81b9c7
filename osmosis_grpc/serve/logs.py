"""Logging of the command line: to stderr, for people on a terminal, as JSON elsewhere."""

import logging
import sys

import stamina
import structlog


def configure(level: str) -> None:
    """Send the standard library's logging through structlog's renderers."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    errors: list[structlog.typing.Processor] = [structlog.processors.format_exc_info]
    if sys.stderr.isatty():
        renderer, errors = structlog.dev.ConsoleRenderer(), []
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *errors, renderer],
    ))  # fmt: skip
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    stamina.instrumentation.set_on_retry_hooks([stamina.instrumentation.LoggingOnRetryHook])
    for name in ("asyncio", "grpc"):  # their debug lines say nothing about rollouts
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
