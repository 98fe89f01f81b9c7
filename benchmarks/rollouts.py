"""Measures a mode: rate, processor time of both sides, bytes between them, the server's memory.

python -m benchmarks.rollouts --mode attach|callback|http|sdk|tuned [--rollouts 1000] [--turns 8] [--tokens 256]
    [--in-flight 64] [--latency 0] [--state-dir DIR|:memory: | --no-journal] [--ledger PATH [--confirm-each]]
    [--json]

Server and trainer are separate processes, with one core each. attach, callback and http (our gateway) run against the
real `osmosis_grpc.serve`, sdk and tuned against benchmarks.http_baseline. Every rollout is checked: one that is lost,
not COMPLETED or without its tokens ends the run with exit code 1. Untimed rollouts before and after the timed ones keep
the number in flight constant. A proxy counts the bytes in a separate pass over fewer rollouts, without the bytes of
connecting.
"""

from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Parser, measured, show
from benchmarks.flight import add_work, work_of
from benchmarks.measure import measure
from benchmarks.processes import BASELINES


def main() -> None:
    parser = Parser(__doc__)
    add_work(parser)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--state-dir", metavar="DIR", help="where the server's journal is, or :memory:")
    either.add_argument("--no-journal", action="store_true", help="run the server without a journal")
    parser.add_argument("--ledger", metavar="PATH", help="let the trainer keep a ledger, and confirm every outcome")
    parser.add_argument("--confirm-each", action="store_true", help="take an outcome when the last one is confirmed")
    parser.add_argument("--no-bytes", action="store_true", help="leave out the pass that counts bytes")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="run the server under cProfile")
    parser.add_argument("--profile-trainer", type=Path, metavar="FILE", help="run the trainer under cProfile")
    given = parser.parse_args()
    work = work_of(parser, given)
    if given.ledger:
        if given.mode not in ("attach", "callback"):
            parser.error(f"--ledger: --mode {given.mode} has no ledger")
        work = replace(work, ledger=str(Path(given.ledger).resolve()), confirm_each=given.confirm_each)
    elif given.confirm_each:
        parser.error("--confirm-each: goes with --ledger")
    serve = ["--no-journal"] if given.no_journal else []
    if given.state_dir:
        serve = [
            "--state-dir",
            given.state_dir if given.state_dir == ":memory:" else str(Path(given.state_dir).resolve()),
        ]
    if serve and given.mode in BASELINES:
        parser.error(f"{serve[0]}: --mode {given.mode} has no journal")
    figures = measured(
        measure(
            work,
            serve=serve,
            bytes_too=not given.no_bytes,
            profile=given.profile,
            profile_trainer=given.profile_trainer,
        )
    )
    show(figures, given.json)


if __name__ == "__main__":
    main()
