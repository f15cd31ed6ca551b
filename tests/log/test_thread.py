"""The writer thread: jobs one at a time and in order, none lost over an end, none at work during a fork."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cmp.errors import LogUnavailableError
from cmp.log.thread import WriterThread


def test_jobs_are_done_once_in_order_and_one_at_a_time_however_often_the_thread_ends():
    thread, at_work, ends = WriterThread(), threading.Lock(), []
    done: dict[int, list[int]] = {i: [] for i in range(4)}

    def job(asker, i):
        assert at_work.acquire(blocking=False)
        done[asker].append(i)
        at_work.release()

    def last():
        assert at_work.acquire(blocking=False)
        time.sleep(0.005)
        ends.append(len(ends))
        at_work.release()

    def ask(asker):
        futures = [thread.submit(lambda i=i: job(asker, i)) for i in range(500) if time.sleep(1e-4) is None]
        for future in futures:
            future.result()

    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(ask, asker) for asker in range(4)]
        while not all(future.done() for future in asked):
            thread.end(last)
        for future in asked:
            future.result()
    assert len(ends) > 3
    assert all(done[asker] == list(range(500)) for asker in range(4))
    thread.end(last)
    assert not thread.is_awake


def test_rest_waits_for_what_has_begun_and_lets_nothing_begin_even_under_load():
    thread, stop, done = WriterThread(), threading.Event(), []

    def load():
        while not stop.is_set():
            thread.submit(lambda: done.append(time.sleep(0.001))).result()

    askers = [threading.Thread(target=load) for _ in range(4)]
    for asker in askers:
        asker.start()
    for _ in range(20):
        assert thread.rest(5)
        before = len(done)
        time.sleep(0.005)
        assert len(done) == before
        thread.wake()
    stop.set()
    for asker in askers:
        asker.join()


def test_rest_is_given_up_in_time_where_a_job_hangs_or_asks_for_it_itself():
    thread, release = WriterThread(), threading.Event()
    hung = thread.submit(release.wait)
    time.sleep(0.05)
    started = time.monotonic()
    assert not thread.rest(0.1)
    assert time.monotonic() - started < 1
    assert thread.is_busy
    release.set()
    hung.result()
    thread.wake()

    def ask():
        rested = thread.rest(30)
        thread.wake()
        return rested

    assert thread.submit(ask).result(timeout=5) is False


def test_jobs_go_on_while_rest_waits_for_a_use_and_no_use_begins():
    thread, release = WriterThread(), threading.Event()
    begun, used_again = threading.Event(), threading.Event()

    def use():
        with thread.in_use():
            begun.set()
            release.wait()
            with thread.in_use():  # nested: it must not wait for who waits for it
                pass

    def use_again():
        with thread.in_use():
            used_again.set()

    with ThreadPoolExecutor(3) as pool:
        using = pool.submit(use)
        begun.wait()
        resting = pool.submit(lambda: (thread.rest(30), thread.wake()))
        time.sleep(0.05)
        using_again = pool.submit(use_again)
        for _ in range(3):
            assert thread.submit(threading.get_ident).result(timeout=5)
        time.sleep(0.05)
        assert not resting.done() and not used_again.is_set()
        release.set()
        assert resting.result(timeout=5)[0] is True
        using.result(timeout=5)
        using_again.result(timeout=5)
    assert not thread.is_busy


def test_rest_is_given_up_in_time_where_a_use_goes_on_and_no_job_begins_then():
    thread = WriterThread()
    with ThreadPoolExecutor(1) as pool, thread.in_use():
        rested = pool.submit(thread.rest, 0.1)
        assert rested.result(timeout=5) is False
        assert thread.is_busy
        waiting = thread.submit(int)
        time.sleep(0.05)
        assert not waiting.done()
        pool.submit(thread.wake).result()
        assert waiting.result(timeout=5) == 0
    assert not thread.is_busy


def test_who_rests_is_not_woken_by_another():
    thread = WriterThread()
    assert thread.rest(1)
    other = threading.Thread(target=thread.wake)
    other.start()
    other.join()
    waiting = thread.submit(int)
    time.sleep(0.05)
    assert not waiting.done()
    thread.wake()
    assert waiting.result(timeout=5) == 0


def test_a_thread_that_refuses_says_why_to_every_job():
    thread = WriterThread("it was left in the middle of something")
    with pytest.raises(LogUnavailableError, match="in the middle"):
        thread.submit(int).result()
    with pytest.raises(LogUnavailableError, match="in the middle"), thread.in_use():
        pass
    thread.end(pytest.fail)
    assert thread.is_busy and not thread.is_awake


def test_a_job_is_done_where_it_is_asked_unless_that_would_hold_somebody_up():
    thread, release = WriterThread(), threading.Event()

    def ask():
        done = thread.here(threading.get_ident)
        assert done is not None
        assert done.result() == threading.get_ident()
        failed = thread.here(lambda: 1 // 0)
        assert failed is not None
        assert isinstance(failed.exception(), ZeroDivisionError)

        hung = thread.submit(release.wait)
        assert thread.here(pytest.fail) is None
        release.set()
        hung.result()
        thread.rest(1)
        assert thread.here(pytest.fail) is None
        thread.wake()
        assert thread.here(int) is not None

    async def ask_on_a_loop():
        return thread.here(pytest.fail)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(ask).result()
        assert pool.submit(lambda: asyncio.run(ask_on_a_loop())).result() is None
    assert thread.here(pytest.fail) is None, "a signal may interrupt the main thread"


def test_jobs_done_here_and_there_are_never_done_at_once():
    thread, at_work, stop = WriterThread(), threading.Lock(), time.monotonic() + 0.5
    counts = {"here": 0, "there": 0}

    def job(where):
        assert at_work.acquire(blocking=False)
        counts[where] += 1
        at_work.release()

    def ask():
        while time.monotonic() < stop:
            if (done := thread.here(lambda: job("here"))) is None:
                done = thread.submit(lambda: job("there"))
            done.result()

    with ThreadPoolExecutor(4) as pool:
        for asked in [pool.submit(ask) for _ in range(4)]:
            asked.result()
    assert min(counts.values()) > 0
    assert not thread.is_busy
