"""Options shared by the benchmarks: the work, the ledger, and the server's journal."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.flight import Work
from benchmarks.processes import BASELINES

MODES = ("attach", "callback", "http", "sdk", "tuned")
NAMES = ("rollouts", "turns", "tokens", "in_flight", "latency")


def add_work(
    parser: argparse.ArgumentParser,
    *,
    modes: Sequence[str] = MODES,
    mode: str | None = None,
    without: Sequence[str] = (),
    **work: Any,
) -> None:
    """Add an option for every parameter of the work except those in `without`. Without `mode`, --mode is required."""
    parser.add_argument(
        "--mode", choices=modes, default=mode, required=mode is None, help=f"[{mode}]" if mode else None
    )
    defaults = Work(mode=mode or "", **work)
    for name in NAMES:
        default = getattr(defaults, name)
        if name in without:
            parser.set_defaults(**{name: default})
            continue
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, metavar="N", help=f"[{default:g}]")


def work_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Work:
    """Return the work of the options. A bad value ends the process with exit code 2."""
    if given.rollouts < 1 or given.turns < 1 or given.in_flight < 1 or given.tokens < 0 or given.latency < 0:
        parser.error("--rollouts, --turns and --in-flight are at least 1, --tokens and --latency at least 0")
    return Work(mode=given.mode, **{name: getattr(given, name) for name in NAMES})


def with_ledger(parser: argparse.ArgumentParser, given: argparse.Namespace, work: Work) -> Work:
    """Return the work with its ledger. A mode without a ledger ends the process with exit code 2."""
    if given.ledger and given.mode not in ("attach", "callback"):
        parser.error(f"--ledger: --mode {given.mode} has no ledger")
    return replace(work, ledger=str(Path(given.ledger).resolve())) if given.ledger else work


def add_journal(parser: argparse.ArgumentParser) -> None:
    """Add --state-dir and --no-journal, which are passed on to the server."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--state-dir", metavar="DIR", help="where the server's journal is, or :memory:")
    either.add_argument("--no-journal", action="store_true", help="run the server without a journal")


def journal_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[str]:
    """Return the server's arguments. A mode without a journal ends the process with exit code 2."""
    option = "--no-journal" if given.no_journal else "--state-dir" if given.state_dir else ""
    if not option:
        return []
    if given.mode in BASELINES:
        parser.error(f"{option}: --mode {given.mode} has no journal")
    if given.no_journal:
        return [option]
    return [option, given.state_dir if given.state_dir == ":memory:" else str(Path(given.state_dir).resolve())]
