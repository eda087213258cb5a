"""The table of goals reads what ``mizzen bench`` writes."""

from tests.gpu.goals import GOALS, rows_of


def test_the_last_reading_counts_and_missing_ones_are_told() -> None:
    rows = [{"batch": 1, "step ms": 0.5, "TTFT ms": 7.0}]
    document = {"model": "qwen06b", "workloads": {"decode": rows}}
    found = {row["workload"]: row for row in rows_of([document])}
    assert len(found) == len(GOALS)
    assert found["C qwen06b batch 1 ms"]["reached"] == "yes"
    assert found["C qwen06b batch 1 ms"]["of the floor"] == "58%"
    assert found["C qwen06b batch 1 TTFT ms"]["reached"] == "no"
    assert found["A llama8b offline tok/s"]["ours"] == "not measured"
