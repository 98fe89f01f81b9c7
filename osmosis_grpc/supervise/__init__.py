"""Owns every background task, thread and timer of this project, and says what the failure of each one means.

A kind of background work is a Job, declared once, in the file that does the work. Nothing else in the project calls
`create_task`, `ensure_future`, `Thread` or `call_later`; scripts/lint_supervision.py checks that.
"""

from osmosis_grpc.supervise.backoff import Backoff
from osmosis_grpc.supervise.jobs import Job, OnFailure, declared, inject, job
from osmosis_grpc.supervise.supervisor import Supervisor
from osmosis_grpc.supervise.unsupervised import call_later, child, failures, future, thread

__all__ = [
    "Backoff",
    "Job",
    "OnFailure",
    "Supervisor",
    "call_later",
    "child",
    "declared",
    "failures",
    "future",
    "inject",
    "job",
    "thread",
]
