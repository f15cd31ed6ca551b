"""What is called around a fork, and for whom."""

from __future__ import annotations

import gc
import os

import pytest

from cmp.forking import after_fork, around_fork

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")


class Owner:
    def __init__(self):
        self.called = []

    def noting(self, name):
        return lambda owner: owner.called.append(name)


def told_by_a_child(owner):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, ",".join(owner.called).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read().split(",")


def test_parent_and_child_are_told_each_its_own():
    owner = Owner()
    around_fork(
        owner,
        before=owner.noting("before"),
        after_in_parent=owner.noting("parent"),
        after_in_child=owner.noting("child"),
    )
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
