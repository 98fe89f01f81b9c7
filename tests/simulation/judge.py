"""Judges the history of a run by all oracles."""

from collections.abc import Callable, Iterable, Iterator

from tests.simulation.history import Record
from tests.simulation.oracles import lifecycle, logs, orders, outcomes, sampling
from tests.simulation.oracles.evidence import Evidence, Finding

Oracle = Callable[[Evidence], Iterator[Finding]]
ORACLES: tuple[Oracle, ...] = (
    outcomes.nothing_lost,
    outcomes.applied_once,
    outcomes.recorded_is_applied,
    outcomes.no_old_attempt,
    outcomes.fair_end,
    outcomes.delivered,
    outcomes.credentials_gone,
    sampling.sampled_once,
    sampling.one_reply,
    sampling.replayed_at_once,
    sampling.patient,
    sampling.no_late_sampling,
    sampling.abandoned_stops,
    sampling.tokens_exact,
    lifecycle.attempts_rise,
    lifecycle.one_run,
    lifecycle.delivered_once,
    lifecycle.events_without_gaps,
    lifecycle.readers_reach_the_end,
    lifecycle.windows_kept,
    lifecycle.within_capacity,
    lifecycle.nothing_left,
    lifecycle.everything_ends,
    lifecycle.ends_without_agent,
    lifecycle.runs_stop,
    orders.linearizable,
    logs.errors_explained,
)


def findings(records: Iterable[Record]) -> list[Finding]:
    """Returns every promise that a history breaks."""
    return judged(records)[0]


def judged(records: Iterable[Record]) -> tuple[list[Finding], int]:
    """Returns every promise that a history breaks, and how many searches for an order of calls were given up."""
    evidence = Evidence(records)
    return [finding for oracle in ORACLES for finding in oracle(evidence)], evidence.undecided
