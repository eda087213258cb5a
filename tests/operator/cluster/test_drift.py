import pytest

from mizzen_operator.cluster.drift import drifted_fields


@pytest.mark.parametrize(
    ("wanted", "live", "fields"),
    [
        ({"a": 1}, {"a": 1, "defaulted": 2}, set()),
        ({"a": 1}, {"a": 2}, {".a"}),
        ({"a": {"b": "x"}}, {}, {".a"}),
        ({"a": {}}, {}, set()),
        ({"a": []}, {}, set()),
        ({"a": False}, {}, set()),
        ({"a": True}, {}, {".a"}),
        ({"a": [{"n": "x"}]}, {"a": [{"n": "x", "defaulted": 1}]}, set()),
        ({"a": [{"n": "x"}]}, {"a": [{"n": "y"}]}, {".a[0].n"}),
        ({"a": ["x"]}, {"a": ["x", "y"]}, {".a"}),
        ({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "1"}}, set()),
        ({"requests": {"cpu": 1}}, {"requests": {"cpu": "1"}}, set()),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1024Mi"}}, set()),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1G"}}, {".limits.memory"}),
        ({"emptyDir": {"sizeLimit": "1Gi"}}, {"emptyDir": {"sizeLimit": "1024Mi"}}, set()),
        ({"labels": {"a": "1000"}}, {"labels": {"a": "1e3"}}, {".labels.a"}),
        ({"image": "a:1"}, {"image": "a:2"}, {".image"}),
    ],
)
def test_only_rendered_fields_count(wanted, live, fields) -> None:
    assert drifted_fields(wanted, live) == fields
