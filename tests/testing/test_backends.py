"""``check_backend``: stores that keep the contract pass, and each way to break it is named."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

import cmp
from cmp.protocols import Hit
from cmp.retrievers import BM25
from cmp.testing import BackendCheck, PropertyError, check_backend
from tests.serving.stores import AsyncStore, Document, Store, documents

LISTED = "ids are listed once, and the same each time"
FETCHED = "get returns what is asked for, and nothing else"
SEARCHED = "search returns distinct memories of the scope, n at most"
UNKNOWN = "an unknown scope holds nothing"
ISOLATED = "memories of one scope are not found in another"
OBJECTS = "objects are left as they are"
STEADY = "the revision is steady while nothing changes"
DELETED = "what is deleted is gone"


def good() -> Store:
    """Two scopes, one id in both, other objects under it."""
    return Store(
        {
            "a": {**documents(4), "x": Document("x", "a's")},
            "b": {**documents(3, "n"), "x": Document("x", "b's")},
        },
        ("m1", "x"),
    )


class Revised(Store):
    """Has a token that is a function of the set of ids."""

    def revision(self, *, scope):
        return tuple(sorted(self.scopes[scope.key]))


def deletes(store):
    return lambda scope, memory_id: store.scopes[scope].pop(memory_id)


def test_a_good_store_has_every_property_that_can_be_tried():
    store = Revised(good().scopes, ("m1", "x"))
    checked = check_backend(store, ["a", "b"], delete=deletes(store))
    assert checked.properties == (LISTED, FETCHED, SEARCHED, UNKNOWN, ISOLATED, OBJECTS, STEADY, DELETED)
    assert checked.n_memories == {"a": 4, "b": 4}
    alone = check_backend(good(), ["b"])
    assert alone == BackendCheck((LISTED, FETCHED, SEARCHED, UNKNOWN, OBJECTS), {"b": 4})


def test_a_store_that_refuses_an_unknown_scope_lazily_is_good_too():
    class Lazy(Store):
        def list_ids(self, *, scope):
            yield from self.scopes[scope.key]

    assert UNKNOWN in check_backend(Lazy(good().scopes, ("m1", "x")), ["a", "b"]).properties


def test_what_the_package_ships_keeps_the_contract():
    texts = {scope: {f"m{i}": f"word{i} tea" for i in range(5)} for scope in ("ann", "bob")}
    texts["bob"]["only"] = "milk"
    assert ISOLATED in check_backend(BM25(texts), ["ann", "bob"], queries=["tea", ""]).properties


def test_an_asynchronous_store_is_checked_too():
    store = good()

    async def delete(scope, memory_id):
        await asyncio.sleep(0)
        del store.scopes[scope][memory_id]

    assert DELETED in check_backend(AsyncStore(store), ["a", "b"], delete=delete).properties


def test_an_asynchronous_store_stays_in_one_event_loop():
    loops = set()

    class Bound(AsyncStore):
        async def asearch(self, query, n, *, scope):
            loops.add(asyncio.get_running_loop())
            return await super().asearch(query, n, scope=scope)

        async def aget(self, ids, *, scope):
            loops.add(asyncio.get_running_loop())
            return await super().aget(ids, scope=scope)

    async def within_a_test() -> None:
        check_backend(Bound(good()), ["a", "b"])
        check_backend(good(), ["a", "b"])

    check_backend(Bound(good()), ["a", "b"])
    assert len(loops) == 1
    asyncio.run(within_a_test())
    assert len(loops) == 2


def test_callables_are_checked_as_they_are_wrapped():
    held = {"a": ["m1", "m2"], "b": ["n1", "n2"]}
    checked = check_backend(
        lambda query, scope: held.get(scope, [])[:1],
        ["a", "b"],
        list_ids=lambda scope: held.get(scope, []),
        get=lambda ids, scope: [i for i in ids if i in held.get(scope, [])],
    )
    assert ISOLATED in checked.properties
    everything = check_backend(
        lambda query: ["m1", "m2"],
        [cmp.EVERYTHING],
        list_ids=lambda: held["a"],
        get=lambda ids: [i for i in ids if i in held["a"]],
    )
    assert UNKNOWN not in everything.properties


def test_scopes_of_several_fields_are_checked():
    store = Store({'{"app":"mail","user":"1"}': documents(3), '{"app":"mail","user":"2"}': documents(2, "n")})
    checked = check_backend(store, [{"user": "1", "app": "mail"}, {"user": "2", "app": "mail"}])
    assert UNKNOWN in checked.properties


class Bad(Store):
    """A good store with some of its methods replaced."""

    def __init__(self, **methods) -> None:
        super().__init__(good().scopes, ("m1", "x"))
        self.calls = 0
        for name, method in methods.items():
            setattr(self, name, SimpleNamespace(call=method, store=self).call.__get__(self))


def twice(self, *, scope) -> Iterable[str]:
    return [*self.scopes[scope.key], next(iter(self.scopes[scope.key]))]


def drifting(self, *, scope):
    self.calls += 1
    return list(self.scopes[scope.key])[self.calls % 2 :]


def everything(self, *, scope):
    assert scope.key in self.scopes
    return sorted({memory for held in self.scopes.values() for memory in held})


def forgetful(self, ids, *, scope):
    return {i: hit for i, hit in Store.get(self, ids, scope=scope).items() if i != "m2"}


def generous(self, ids, *, scope):
    return Store.get(self, [*ids, "m3"], scope=scope)


def misfiled(self, ids, *, scope):
    found = Store.get(self, ids, scope=scope)
    return dict(zip(found, reversed(found.values()), strict=True))


def unscoped_get(self, ids, *, scope):
    assert scope.key in self.scopes
    held = {memory: document for scope in self.scopes.values() for memory, document in scope.items()}
    return {i: Hit(i, held[i]) for i in ids if i in held}


def refusing(self, ids, *, scope):
    return {i: Hit(i, self.scopes[scope.key][i]) for i in ids}


def repeating(self, query, n, *, scope):
    return Store.search(self, query, n, scope=scope)[:1] * min(n, 2)


def endless(self, query, n, *, scope):
    return [Hit(i, document) for i, document in self.scopes[scope.key].items()]


def foreign(self, query, n, *, scope):
    return [Hit("n1", self.scopes["b"]["n1"])][:n]


def default_scope(self, query, n, *, scope):
    held = self.scopes.get(scope.key, self.scopes["a"])
    return [Hit(i, document) for i, document in held.items()][:n]


def failing(self, query, n, *, scope):
    raise RuntimeError("no such index")


def annotating(self, query, n, *, scope):
    hits = Store.search(self, query, n, scope=scope)
    for hit in hits:
        object.__setattr__(hit.item, "text", hit.item.text + "!")
    return hits


def nameless(self, query, n, *, scope):
    return [Document(None, "no id")]


def ticking(self, *, scope):
    self.calls += 1
    return self.calls


def constant(self, *, scope):
    return 1


def unhashable(self, *, scope):
    return list(self.scopes[scope.key])


FAULTS = [
    (LISTED, "twice; yield every id once", {"list_ids": twice}),
    (LISTED, "nothing was changed", {"list_ids": drifting}),
    (LISTED, "put two or more in", {"list_ids": lambda self, *, scope: ["m0"]}),
    (LISTED, "ids are strings or integers", {"list_ids": lambda self, *, scope: ["m0", None]}),
    (LISTED, "the int 1 and the string '1'", {"list_ids": lambda self, *, scope: [1, "1"]}),
    (FETCHED, "'m2'.*which list_ids lists", {"get": forgetful}),
    (FETCHED, "which nobody asked for", {"get": generous}),
    (FETCHED, "a hit of another id", {"get": misfiled}),
    (LISTED, "list_ids returned None", {"list_ids": lambda self, *, scope: None}),
    (SEARCHED, "search returned None", {"search": lambda self, query, n, *, scope: None}),
    (FETCHED, "get returned None", {"get": lambda self, ids, *, scope: None}),
    (FETCHED, "raised KeyError", {"get": refusing}),
    (SEARCHED, "an id twice", {"search": repeating}),
    (SEARCHED, "returned 5 results; return 1 at most", {"search": endless}),
    (SEARCHED, "'n1'.*which list_ids does not list there", {"search": foreign}),
    (SEARCHED, "raised RuntimeError: no such index", {"search": failing}),
    (SEARCHED, "ids are strings or integers", {"search": nameless}),
    (UNKNOWN, "search returned .* for a scope that does not exist", {"search": default_scope}),
    (ISOLATED, "all 2 scopes list the same ids", {"list_ids": everything, "get": unscoped_get}),
    (OBJECTS, "the object of '(m1|x)' was changed by searching", {"search": annotating}),
    (STEADY, "from 1 to 2", {"revision": ticking}),
    (STEADY, "has no hash", {"revision": unhashable}),
]


@pytest.mark.parametrize(("broken", "message", "methods"), FAULTS, ids=[f"{f[0]}: {f[1]}" for f in FAULTS])
def test_each_fault_is_named_by_its_property(broken, message, methods):
    with pytest.raises(PropertyError, match=message) as failure:
        check_backend(Bad(**methods), ["a", "b"])
    assert failure.value.property_name == broken
    assert str(failure.value).startswith(broken)
    assert isinstance(failure.value, AssertionError)


def test_a_failure_travels_between_processes_as_it_is():
    failure = PropertyError("ids are stable", "they are not; keep them")
    copy = pickle.loads(pickle.dumps(failure))
    assert (str(copy), copy.property_name) == ("ids are stable: they are not; keep them", "ids are stable")


def test_a_get_that_does_not_look_at_the_scope_leaks():
    scoped = {"a": documents(3), "b": documents(3, "n")}

    class Leaking(Store):
        def get(self, ids, *, scope):
            return unscoped_get(self, ids, scope=scope)

    with pytest.raises(
        PropertyError, match="are memories of 'b'; get must check the scope itself"
    ) as failure:
        check_backend(Leaking(scoped), ["a", "b"])
    assert failure.value.property_name == ISOLATED


def remains_listed(store):
    def delete(scope, memory_id):
        held = dict(store.scopes[scope])
        store.list_ids = lambda *, scope: list(held)
        del store.scopes[scope][memory_id]

    return delete


def remains_gettable(store):
    def delete(scope, memory_id):
        hit = Hit(memory_id, store.scopes[scope].pop(memory_id))
        store.get = lambda ids, *, scope: (
            {memory_id: hit} if memory_id in ids else Store.get(store, ids, scope=scope)
        )

    return delete


def remains_found(store):
    def delete(scope, memory_id):
        hit = Hit(memory_id, store.scopes[scope].pop(memory_id))
        store.search = lambda query, n, *, scope: [hit][:n]

    return delete


@pytest.mark.parametrize(
    ("deleting", "message"),
    [
        (remains_listed, "list_ids still lists it"),
        (remains_gettable, "get still returns it"),
        (remains_found, "still returns it; drop it"),
    ],
)
def test_what_outlives_its_deletion_is_named(deleting, message):
    store = good()
    with pytest.raises(PropertyError, match=message) as failure:
        check_backend(store, ["a", "b"], delete=deleting(store))
    assert failure.value.property_name == DELETED


def test_a_revision_that_a_deletion_does_not_change_is_named():
    store = Bad(revision=constant)
    with pytest.raises(PropertyError, match="must change whenever the set of ids does"):
        check_backend(store, ["a", "b"], delete=deletes(store))


def test_what_is_no_store_is_refused():
    with pytest.raises(ValueError, match="scopes is empty"):
        check_backend(good(), [])
    with pytest.raises(TypeError, match="random slots need"):
        check_backend(lambda query: [], [cmp.EVERYTHING])
