"""The System: one port for clocks, random numbers, ids and threads."""

import asyncio
import random
import threading

from osmosis_grpc.supervise import SYSTEM, Backoff, OnFailure, Supervisor, System
from osmosis_grpc.supervise.jobs import Job
from tests.waiting import until

WORK = Job("test.work", OnFailure.REPORT, "thread")


class Collecting:
    """Collects what a Consumer consumes."""

    def __init__(self):
        self.taken, self.errors, self.threads = [], [], set()
        self.fail_on = None

    def timeout(self):
        return 60.0

    def consume(self, items):
        self.threads.add(threading.get_ident())
        if self.fail_on in items:
            raise OSError("the disk")
        self.taken += items

    def died(self, error):
        self.errors.append(error)


def test_ids_are_unique_even_if_a_program_seeds_random():
    random.seed(7)
    first = SYSTEM.new_id(), SYSTEM.new_secret()
    random.seed(7)
    second = SYSTEM.new_id(), SYSTEM.new_secret()
    assert len({*first, *second}) == 4
    assert [len(text) for text in first] == [32, 32]


async def test_run_calls_a_function_on_another_thread():
    assert await SYSTEM.run(lambda own: threading.get_ident() != own, threading.get_ident())


def test_a_backoff_takes_its_random_numbers_from_the_system():
    system = System()
    system.uniform = lambda low, high: high
    pauses = Backoff(1.0, 3.0, system=system)
    assert [pauses.next() for _ in range(3)] == [1.0, 2.0, 3.0]


async def test_a_supervisor_starts_its_threads_by_its_system():
    names = []

    class Counting(System):
        def thread(self, name, run):
            names.append(name)
            return super().thread(name, run)

    thread = Supervisor("the test", system=Counting()).thread(WORK, lambda: False)
    await asyncio.to_thread(thread.join)
    assert names == ["test.work"]


async def test_a_consumer_consumes_in_order_on_one_other_thread():
    collecting = Collecting()
    queue = SYSTEM.consumer(Supervisor("the test"), WORK, collecting)
    reports = []
    for number in range(5000):
        queue.put(number)
    queue.report(reports.append, "reported")
    await SYSTEM.run(queue.end)
    assert collecting.taken == list(range(5000))
    assert len(collecting.threads) == 1
    assert threading.get_ident() not in collecting.threads
    await until(lambda: reports == ["reported"])


async def test_a_consumer_returns_its_items_after_an_error():
    collecting = Collecting()
    collecting.fail_on = "b"
    queue = SYSTEM.consumer(Supervisor("the test"), WORK, collecting)
    queue.put("a")
    await until(lambda: collecting.taken == ["a"])
    queue.put("b")
    await until(lambda: collecting.errors)
    queue.put("c")
    assert [str(error) for error in collecting.errors] == ["the disk"]
    assert queue.take_left() == ["b", "c"]
    assert queue.take_left() == []
