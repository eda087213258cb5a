"""Namespaces of another installation: taken in, given back, not forgotten for want of news."""

import asyncio
from typing import Any

import pytest
from tests.operator.fake_operator import Clock

from mizzen_operator.cluster.lease import LEASE
from mizzen_operator.cluster.request import Request
from mizzen_operator.cluster.served_elsewhere import ServedElsewhere
from mizzen_operator.errors import UnavailableError
from mizzen_operator.store import ObjectRef

OWN = ObjectRef(kind=LEASE, namespace="mizzen-system", name="mizzen-operator")


class FakeLeases:
    """Answers with the Leases that it has now."""

    def __init__(self) -> None:
        self.specs: dict[str, dict[str, Any]] = {}
        self.is_down = False

    async def call(self, request: Request) -> dict[str, Any]:
        assert request.path == "/apis/coordination.k8s.io/v1/leases"
        assert request.query == (("fieldSelector", "metadata.name=mizzen-operator"),)
        if self.is_down:
            raise UnavailableError("no answer")
        items = [
            {"metadata": {"namespace": name, "name": OWN.name}, "spec": spec}
            for name, spec in self.specs.items()
        ]
        return {"items": items}

    def renew(self, namespace: str, stamp: int, holder: str = "other") -> None:
        self.specs[namespace] = {
            "holderIdentity": holder,
            "renewTime": str(stamp),
            "leaseDurationSeconds": 45,
        }


class World:
    """One installation of the whole cluster that looks around."""

    def __init__(self) -> None:
        self.leases, self.clock, self.changes = FakeLeases(), Clock(), 0
        self.elsewhere = ServedElsewhere(
            self.leases, OWN, clock=self.clock, on_change=self._changed
        )

    def _changed(self) -> None:
        self.changes += 1

    def look(self, after_s: float = 10.0) -> set[str]:
        self.clock.now_s += after_s
        asyncio.run(self.elsewhere.look())
        return set(self.elsewhere.namespaces)


@pytest.fixture
def world() -> World:
    return World()


def test_the_own_lease_is_nobody_elses(world: World) -> None:
    world.leases.renew(OWN.namespace, 1, holder="me")
    assert world.look() == set()
    assert world.changes == 0


def test_a_namespace_is_left_while_its_lease_is_renewed(world: World) -> None:
    for stamp in range(20):
        world.leases.renew("team", stamp)
        assert world.look() == {"team"}
    assert world.changes == 1


def test_it_is_taken_back_when_the_lease_runs_out(world: World) -> None:
    world.leases.renew("team", 1)
    assert [len(world.look()) for _ in range(6)] == [1, 1, 1, 1, 1, 0]
    assert world.changes == 2
    world.leases.renew("team", 2)
    assert world.look() == {"team"}


@pytest.mark.parametrize("handed_over", [True, False], ids=["handed over", "deleted"])
def test_it_is_taken_back_at_once_when_the_lease_is_given_up(
    world: World, *, handed_over: bool
) -> None:
    world.leases.renew("team", 1)
    world.leases.renew("other", 1)
    assert world.look() == {"team", "other"}
    if handed_over:
        world.leases.renew("team", 2, holder="")
    else:
        del world.leases.specs["team"]
    assert world.look() == {"other"}


def test_a_wall_clock_that_is_wrong_does_not_matter(world: World) -> None:
    world.leases.specs["team"] = {"holderIdentity": "x", "renewTime": "1970-01-01T00:00:00Z"}
    assert world.look() == {"team"}


def test_while_nobody_answers_nothing_is_forgotten(world: World) -> None:
    world.leases.renew("team", 1)
    world.look()
    world.leases.is_down = True
    assert world.look(after_s=1000) == {"team"}
    world.leases.is_down = False
    world.leases.renew("team", 2)
    assert world.look() == {"team"}
