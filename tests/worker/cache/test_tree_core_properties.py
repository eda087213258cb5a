"""T1-T15, T18, T19 as state machines against a dictionary model: Full alone, and with a toy.

Each operation compares its answer with the model and with a second tree (T19); after each,
``check`` recomputes T1-T9. T10-T15 are asserted in the operations of ``TreeDriver``.
"""

import random
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.scale import count
from tests.worker.cache.toy_components import EndState, Window
from tests.worker.cache.tree_driver import TreeDriver

from mizzen_worker.contracts.cache_eviction import CacheEviction

if TYPE_CHECKING:
    from collections.abc import Callable

NAMESPACE = st.integers(0, 2)
WHICH = st.integers(0, 20)
PRIORITY = st.integers(-1, 2)
TOYS: tuple[type[EndState | Window] | None, ...] = (None, EndState, Window)


class TreeMachine(RuleBasedStateMachine):
    """One tree of one page size; the order of eviction is drawn."""

    page_size: ClassVar[int] = 1
    toy: ClassVar[type[EndState | Window] | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.driver = TreeDriver(self.page_size)

    @initialize(eviction=st.sampled_from(CacheEviction))
    def start(self, eviction: CacheEviction) -> None:
        toy = None if self.toy is None else self.toy()
        self.driver = TreeDriver(self.page_size, eviction=eviction, toy=toy)

    def _tokens(self, data: st.DataObject) -> list[int]:
        return data.draw(st.lists(st.integers(0, 1), max_size=8 * self.page_size))

    @rule(namespace=NAMESPACE, data=st.data())
    def match(self, namespace: int, data: st.DataObject) -> None:
        self.driver.match(self.driver.key(namespace, self._tokens(data)))

    @rule(namespace=NAMESPACE, data=st.data(), priority=PRIORITY, boundary=st.integers(0, 4))
    def insert(self, namespace: int, data: st.DataObject, priority: int, boundary: int) -> None:
        key = self.driver.key(namespace, self._tokens(data))
        self.driver.insert(key, priority=priority, boundary=boundary)

    @rule(namespace=NAMESPACE, data=st.data(), priority=PRIORITY)
    def lock(self, namespace: int, data: st.DataObject, priority: int) -> None:
        key = self.driver.key(namespace, self._tokens(data))
        self.driver.lock(namespace, key, priority=priority)

    @rule(which=WHICH, data=st.data(), priority=PRIORITY)
    def extend(self, which: int, data: st.DataObject, priority: int) -> None:
        self.driver.extend(which, self._tokens(data), priority=priority)

    @rule(which=WHICH)
    def unlock(self, which: int) -> None:
        self.driver.unlock(which)

    @rule(num_units=st.integers(0, 12))
    def evict(self, num_units: int) -> None:
        self.driver.evict(num_units)

    @rule(num_units=st.integers(1, 4))
    def evict_toy(self, num_units: int) -> None:
        self.driver.evict_toy(num_units)

    @invariant()
    def is_sound(self) -> None:
        self.driver.check()

    def teardown(self) -> None:
        self.driver.finish()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("toy", TOYS)
def test_any_interleaving(page_size: int, toy: type[EndState | Window] | None) -> None:
    machine = type("Machine", (TreeMachine,), {"page_size": page_size, "toy": toy})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=count(check=25, full=300), stateful_step_count=25)
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("eviction", CacheEviction)
@pytest.mark.parametrize("toy", TOYS)
def test_random_operations(toy: type[EndState | Window] | None, eviction: CacheEviction) -> None:
    """Long runs, in which the tree stays populated: at full scale 100,000 of the default order."""
    seed = TOYS.index(toy) * 10 + list(CacheEviction).index(eviction)
    driver = TreeDriver(
        (1, 2, 4)[seed % 3],
        num_pages=300,
        compare_every=50,
        eviction=eviction,
        toy=None if toy is None else toy(),
    )
    full = 100_000 if eviction is CacheEviction.LRU else 20_000
    run_random_operations(driver, count(check=300, full=full), seed=seed)


def run_random_operations(driver: TreeDriver, num_operations: int, seed: int) -> None:
    """Random operations that favour growth."""
    dice = random.Random(seed)
    for number in range(num_operations):
        tokens = [dice.randint(0, 1) for _ in range(dice.randint(0, 12 * driver.page_size))]
        namespace, priority, which = dice.randint(0, 2), dice.randint(-1, 2), dice.randrange(100)
        operations: tuple[tuple[int, Callable[[], None]], ...] = (
            (2, partial(driver.match, driver.key(namespace, tokens))),
            (
                4,
                partial(
                    driver.insert,
                    driver.key(namespace, tokens),
                    priority=priority,
                    boundary=dice.randint(0, 8),
                ),
            ),
            (2, partial(driver.lock, namespace, driver.key(namespace, tokens), priority=priority)),
            (2, partial(driver.extend, which, tokens[: 2 * driver.page_size], priority=priority)),
            (2, partial(driver.unlock, which)),
            (1, partial(driver.evict, which % 30)),
            (1, partial(driver.evict_toy, which % 5)),
        )
        weights = [weight for weight, _ in operations]
        dice.choices(operations, weights)[0][1]()
        if number % 97 == 0 or len(driver.locked) > 40:
            driver.check()
            while len(driver.locked) > 20:
                driver.unlock(dice.randrange(100))
    driver.finish()
