from pathlib import Path

from mizzen_operator.metrics import Metrics

PAGE = Path(__file__).parents[2] / "docs/reference/operator-metrics.md"


def test_the_reference_is_the_generated_one() -> None:
    assert PAGE.read_text() == Metrics().reference()


def test_the_reference_has_what_is_exposed() -> None:
    metrics = Metrics()
    exposed = {
        line.split()[2]
        for line in metrics.text().decode().splitlines()
        if line.startswith("# TYPE") and not line.split()[2].endswith("_created")
    }
    page = metrics.reference()
    assert exposed
    assert all(f"| `{name}` | " in page for name in exposed)
