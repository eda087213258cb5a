"""Each reason that the operator can set, and each thing a pod can wait for, has its remedy."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mizzen_operator import errors
from mizzen_operator.observed import Lack
from mizzen_operator.planner.fetch_report import WeightsReason
from mizzen_operator.report.remedies import REMEDY_BY_REASON, Place, remedy_of
from mizzen_operator.status import groups, holdups, keptout, running
from mizzen_operator.status.running import is_as_wished

STATUS = Path(running.__file__).parent
TRUTHS = {"yes": "True", "no": "False", "unknown": "Unknown"}
ENUMS = {"why.value": Lack, "weights.reason.value": WeightsReason}
KEPT_OUT = {keptout.QUOTA_PENDING, keptout.PODS_REFUSED}
PASSED_ON = {
    "told_by_kubelet(broken[0])[0]",  # those that it may have are in holdups.py
    "barred.reason",  # of a KeptOut
    "problems[0].reason",  # of a Problem; all of them are in errors.py
    "progress.reason",
    "verdict.reason",
}
"""Expressions that repeat a reason which another call has set."""


def calls() -> Iterator[tuple[str, ast.Call, ast.Module]]:
    """Every verdict that is made in ``status/``, with the module it is made in."""
    for path in sorted(STATUS.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            is_named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if is_named and node.func.id in TRUTHS:
                yield path.stem, node, tree


def texts(node: ast.expr, module: str, tree: ast.Module) -> Iterator[str]:
    """What an expression can be; fails for one that this test cannot see through."""
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body, module, tree)
        yield from texts(node.orelse, module, tree)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from texts(value, module, tree)
    elif isinstance(node, ast.Name):
        yield from named(node.id, module, tree)
    elif ast.unparse(node) in ENUMS:
        yield from (member.value for member in ENUMS[ast.unparse(node)])
    else:
        assert ast.unparse(node) in PASSED_ON, f"{module}: where does {ast.unparse(node)} come from"


def named(name: str, module: str, tree: ast.Module) -> Iterator[str]:
    """A constant of the module, or whatever is assigned to a local of this name."""
    known = vars(importlib.import_module(f"mizzen_operator.status.{module}")).get(name)
    if isinstance(known, str):
        yield known
        return
    assigned = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]
    assert assigned, f"{module}: where does {name} come from"
    for value in assigned:
        yield from texts(value, module, tree)


def settable() -> set[str]:
    """Reasons of conditions that are not as wished."""
    found: set[str] = set()
    for module, call, tree in calls():
        assert isinstance(call.func, ast.Name)
        truth = TRUTHS[call.func.id]
        for kind in texts(call.args[0], module, tree):
            for reason in texts(call.args[1], module, tree):
                if not is_as_wished(kind, truth, reason):
                    found.add(reason)
    problems = {
        value for name, value in vars(errors).items() if name.isupper() and not name.startswith("_")
    }
    return found | problems | holdups.BROKEN_WAITS | KEPT_OUT


def waited_for() -> set[str]:
    names = {**vars(holdups), **vars(groups)}.items()
    return {value for name, value in names if name.startswith("WAIT_")}


def test_the_reasons_are_found() -> None:
    found = settable()
    assert {"Unschedulable", "ReconcileError", "InvalidSpec", "RollingOut", "Restarting"} <= found
    assert not {"Complete", "Valid", "Loaded", "Serving", "AsExpected", "Ready"} & found


def test_every_reason_has_its_remedy_and_every_remedy_its_reason() -> None:
    assert set(REMEDY_BY_REASON) == settable() | waited_for()


@pytest.mark.parametrize("reason", REMEDY_BY_REASON)
def test_a_remedy_is_one_line_about_this_service(reason: str) -> None:
    text = remedy_of(reason, Place(namespace="team", name="chat"))
    assert 20 < len(text) < 200
    assert "{" not in text
    assert "\n" not in text


def test_a_reason_of_a_newer_operator_is_not_passed_over() -> None:
    text = remedy_of("Unheard", Place(namespace="team", name="chat"))
    assert "no remedy for Unheard" in text


def test_fields_that_remedies_name_exist() -> None:
    from mizzen_operator.spec.reference import reference_page

    page = reference_page()
    words = " ".join(REMEDY_BY_REASON.values()).replace(";", " ").replace(",", " ").split()
    fields = {word.strip("().:") for word in words if word.strip("(").startswith("spec.")}
    assert fields
    assert [field for field in fields if f"`{field}`" not in page] == []
