"""Owns every background task, thread and timer of this project, and decides what happens when one fails.

A Job is a kind of background work, declared once in the file that does the work. Other packages of the project must
not call `create_task`, `ensure_future`, `Thread` or `call_later`; scripts/lint.py checks this.
"""

from osmosis_grpc.supervise.daemon_threads import DaemonThreads, result_of
from osmosis_grpc.supervise.fork_guard import ForkGuard, fork_place, forks
from osmosis_grpc.supervise.jobs import Job, OnFailure, declared, inject, job
from osmosis_grpc.supervise.supervisor import Supervisor
from osmosis_grpc.supervise.system import SYSTEM, Backoff, Consumer, Consuming, StartedThread, System
from osmosis_grpc.supervise.unsupervised import call_later, child, failures, future, thread

__all__ = [
    "SYSTEM",
    "Backoff",
    "Consumer",
    "Consuming",
    "DaemonThreads",
    "ForkGuard",
    "Job",
    "OnFailure",
    "StartedThread",
    "Supervisor",
    "System",
    "call_later",
    "child",
    "declared",
    "failures",
    "fork_place",
    "forks",
    "future",
    "inject",
    "job",
    "result_of",
    "thread",
]
