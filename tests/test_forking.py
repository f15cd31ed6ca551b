"""What is called around a fork, and for whom."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from cmp.forking import _forks, after_fork, around_fork, outside_forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

HOOKS = ("before", "after_in_parent", "after_in_child")


class Owner:
    def __init__(self):
        self.called = []

    def noting(self, name):
        return lambda owner: owner.called.append(name)

    def note(self, *names, **others):
        """Note forks, by names for before, after in the parent and in the child; other hooks take their place."""
        around_fork(self, **dict(zip(HOOKS, map(self.noting, names), strict=True)) | others)


def said_by_a_child(say):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, say().encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def told_by_a_child(owner):
    return said_by_a_child(lambda: ",".join(owner.called)).split(",")


def test_parent_and_child_are_told_each_its_own():
    owner = Owner()
    owner.note("before", "parent", "child")
    after_fork(owner, owner.noting("reset"))
    assert told_by_a_child(owner) == ["before", "child", "reset"]
    assert owner.called == ["before", "parent"]


def test_an_owner_is_not_kept_alive():
    owner, called = Owner(), []
    around_fork(owner, before=called.append, after_in_parent=called.append, after_in_child=called.append)
    del owner
    gc.collect()
    told_by_a_child(Owner())
    assert called == []


def test_a_hook_that_fails_keeps_nobody_from_being_told(caplog):
    first, failing, last = Owner(), Owner(), Owner()
    for owner in (first, failing, last):
        hook = owner.noting("told") if owner is not failing else lambda owner: owner.nothing_of_this_name
        around_fork(owner, before=hook, after_in_parent=hook, after_in_child=hook)
    assert told_by_a_child(first) == ["told", "told"]
    assert last.called == ["told", "told"]
    assert "nothing_of_this_name" in caplog.text


def test_garbage_leaves_no_trace():
    before = len(_forks._hooks)
    for _ in range(50):
        after_fork(Owner(), Owner.noting)
    gc.collect()
    after_fork(Owner(), _keep)
    assert len(_forks._hooks) <= before + 1


def while_forking(job):
    """Have another thread do a job while a child is forked; return the thread, and whether it could do it then."""
    thread, ended = threading.Thread(target=job), []

    def before(_):
        thread.start()
        thread.join(0.3)
        ended.append(not thread.is_alive())

    gate = Owner()
    around_fork(
        gate, before=before, after_in_parent=gate.noting("parent"), after_in_child=gate.noting("child")
    )
    return gate, thread, ended


def test_a_finalizer_waits_for_a_fork_without_holding_up_its_thread():
    job = Owner()
    gate, thread, ended = while_forking(lambda: outside_forks(lambda: job.called.append("done")))
    assert told_by_a_child(job) == [""]
    assert ended == [True]
    assert job.called == ["done"]
    assert gate.called == ["parent"]
    thread.join()


def test_who_comes_while_another_thread_forks_begins_after_it():
    owner = Owner()
    gate, thread, ended = while_forking(lambda: owner.note(*HOOKS))
    told_by_a_child(gate)
    thread.join()
    assert ended == [False]
    assert owner.called == []


def test_a_child_can_be_told_of_forks_of_its_own():
    def job():
        owner = Owner()
        owner.note("b", "p", "c")
        outside_forks(lambda: owner.called.append("now"))
        return [told_by_a_child(owner), owner.called]

    owner = Owner()
    around_fork(owner, before=owner.noting("x"), after_in_parent=owner.noting("x"), after_in_child=_keep)
    assert said_by_a_child(lambda: repr(job())) == "[['now', 'b', 'c'], ['now', 'b', 'p']]"


def _keep(owner):
    pass


def interrupt(owner):
    raise KeyboardInterrupt


@pytest.mark.parametrize("hook", HOOKS)
def test_an_interrupt_in_a_hook_leaves_nobody_waiting_and_nobody_out(hook, caplog):
    first, stopped, last = Owner(), Owner(), Owner()
    for owner in (first, stopped, last):
        owner.note(*HOOKS, **({hook: interrupt} if owner is stopped else {}))
    assert told_by_a_child(first) == ["before", "after_in_child"]
    assert last.called == ["before", "after_in_parent"]
    later = threading.Thread(target=lambda: after_fork(Owner(), interrupt))
    later.start()
    later.join(5)
    assert not later.is_alive()


def test_garbage_collected_amid_a_fork_keeps_nobody_from_being_told():
    owners = [Owner() for _ in range(60)]
    for owner in owners:
        around_fork(owner, before=owner.noting("b"), after_in_parent=owner.noting("p"), after_in_child=_keep)
    threshold = gc.get_threshold()
    try:
        for step in range(1, 30):
            gc.disable()
            for _ in range(3):
                ring = Owner()
                ring.ring = ring
                after_fork(ring, _keep)
            gc.set_threshold(step + gc.get_count()[0])
            gc.enable()
            told_by_a_child(owners[0])
    finally:
        gc.set_threshold(*threshold)
        gc.enable()
    assert {tuple(owner.called) for owner in owners} == {("b", "p") * 29}


def test_what_a_finalizer_put_off_is_done_as_soon_as_nobody_is_told_anything():
    done = []
    with _forks._under_way:
        thread = threading.Thread(target=lambda: outside_forks(lambda: done.append("done")))
        thread.start()
        thread.join()
        assert done == []
    after_fork(Owner(), _keep)
    assert done == ["done"]
