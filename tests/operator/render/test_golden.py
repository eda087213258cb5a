"""Every case of tests/operator/golden renders to exactly its expected objects.

A case is a folder with input.yaml; expected.yaml is rewritten by ``pytest --update-golden``, and
its diff is the review.
"""

from pathlib import Path

import pytest
import yaml
from tests.operator.documents import DEFAULTS

from mizzen_operator.cli import as_yaml
from mizzen_operator.render.render import RenderContext, render
from mizzen_operator.render.wiring import wiring_faults
from mizzen_operator.spec.parse import parse
from mizzen_operator.spec.resolve import Resolved, resolve

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CASES = sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir())


def case(name: str) -> Resolved:
    """The resolved service of a case; what admission refuses today is rendered all the same."""
    text = (GOLDEN / name / "input.yaml").read_text(encoding="utf-8")
    return resolve(parse(yaml.safe_load(text)), DEFAULTS)


def rendered(service: Resolved) -> str:
    """All objects as one text."""
    context = RenderContext(groups=tuple(range(service.groups)))
    return "---\n".join(as_yaml(obj) for obj in render(service, context))


@pytest.mark.parametrize("name", CASES)
def test_objects_are_as_expected(name: str, *, update_golden: bool) -> None:
    expected = GOLDEN / name / "expected.yaml"
    text = rendered(case(name))
    if update_golden:
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_groups_are_wired(name: str) -> None:
    objects = [obj for obj in yaml.safe_load_all(rendered(case(name))) if obj]
    assert wiring_faults(objects, "nvidia.com/gpu") == []


@pytest.mark.parametrize("name", CASES)
def test_rendering_is_deterministic(name: str) -> None:
    assert rendered(case(name)) == rendered(case(name))
