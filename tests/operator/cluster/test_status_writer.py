from mizzen_operator.cluster.status_writer import additions


def test_only_lists_that_hold_more_are_replaced() -> None:
    applied = {"groups": [], "conditions": [{"type": "Ready"}], "url": "a"}
    assert additions({"conditions": [{"type": "Ready"}], "url": "b", "x": [1]}, applied) == {}
    live = {"groups": [{"name": "told"}], "conditions": [{"type": "Told"}, {"type": "Ready"}]}
    assert additions(live, applied) == {"groups": None, "conditions": [{"type": "Ready"}]}
