"""Check that a store is the one with the catalog's objects."""

import pytest

from anabranch.broker.cluster.membership import store_checks
from anabranch.broker.cluster.membership.store_checks import find_object
from anabranch.s3stream.model import object_key
from tests.support.memory_store import MemoryStore


async def test_an_object_of_the_cluster_is_found_among_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = MemoryStore("first"), MemoryStore("second")
    both = {"first": first, "second": second}
    for store in both.values():
        await store.open()
    assert await find_object(both, "c") is None
    for object_id in range(1, 40):
        await first.put(object_key("other", object_id), [b"x"], writer_id="w")
    await first.put("not/an/object", [b"x"], writer_id="w")
    assert await find_object(both, "c") is None
    await second.put(object_key("c", 7), [b"x"], writer_id="w")
    calls = second.calls.list
    assert await find_object(both, "c") == f"second:{object_key('c', 7)}"
    assert second.calls.list == calls + 1
    await second.delete([object_key("c", 7)])
    last = max(object_key("c", object_id) for object_id in range(1, 40))
    await first.put(last, [b"x"], writer_id="w")
    assert await find_object(both, "c") == f"first:{last}"
    monkeypatch.setattr(store_checks, "PROBE_OBJECTS_MAX", 10)
    assert await find_object(both, "c") is None, "a bucket full of other clusters' objects is not read to its end"
