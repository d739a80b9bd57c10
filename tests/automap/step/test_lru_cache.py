"""What is kept for calls is bounded: the least recently used is dropped."""

from automap.step.lru_cache import LRUCache


def test_the_least_recently_used_value_is_dropped_with_all_its_signatures():
    kept, values = LRUCache(limit=2), [object() for _ in range(3)]
    kept.add("a", values[0])
    kept.add("b", values[1])
    kept.add("a too", values[0])
    assert [*kept.latest_first()] == [values[0], values[1]]
    kept.add("c", values[2])
    assert (kept.get("b"), kept.get("a"), kept.get("a too")) == (None, values[0], values[0])
    kept.add("b", values[1])
    assert kept.get("c") is None
    assert len(kept) == 2
    assert [*kept.latest_first()] == [values[1], values[0]]
