"""T1-T15, T18-T20 for the Full component, as state machines against a dictionary model."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.worker.cache.tree_driver import TreeDriver

TOKENS = st.lists(st.integers(0, 1), max_size=14)
NAMESPACE = st.integers(0, 1)


class _TreeMachine(RuleBasedStateMachine):
    page_size = 1

    def __init__(self) -> None:
        super().__init__()
        self.driver = TreeDriver(self.page_size)

    @rule(namespace=NAMESPACE, tokens=TOKENS)
    def match(self, namespace: int, tokens: list[int]) -> None:
        self.driver.match(self.driver.key(namespace, tokens))

    @rule(namespace=NAMESPACE, tokens=TOKENS)
    def insert(self, namespace: int, tokens: list[int]) -> None:
        self.driver.insert(self.driver.key(namespace, tokens))

    @rule(namespace=NAMESPACE, tokens=TOKENS)
    def lock(self, namespace: int, tokens: list[int]) -> None:
        self.driver.lock(self.driver.key(namespace, tokens))

    @rule(which=st.integers(0, 20))
    def unlock(self, which: int) -> None:
        self.driver.unlock(which)

    @rule(num_units=st.integers(0, 12))
    def evict(self, num_units: int) -> None:
        self.driver.evict(num_units)

    @invariant()
    def is_sound(self) -> None:
        self.driver.check()

    def teardown(self) -> None:
        self.driver.finish()


class _TreeMachineOfTwo(_TreeMachine):
    page_size = 2


class _TreeMachineOfFour(_TreeMachine):
    page_size = 4


TestPageSizeOne = _TreeMachine.TestCase
TestPageSizeTwo = _TreeMachineOfTwo.TestCase
TestPageSizeFour = _TreeMachineOfFour.TestCase
TestPageSizeOne.settings = settings(max_examples=60, stateful_step_count=25)
TestPageSizeTwo.settings = TestPageSizeOne.settings
TestPageSizeFour.settings = TestPageSizeOne.settings


def run_random_operations(driver: TreeDriver, num_operations: int, seed: int) -> None:
    """Random operations that favour growth, so that the tree stays populated."""
    dice = random.Random(seed)
    for number in range(num_operations):
        tokens = [dice.randint(0, 1) for _ in range(dice.randint(0, 12 * driver.page_size))]
        key = driver.key(dice.randint(0, 1), tokens)
        operation = dice.choices(("match", "insert", "lock", "unlock", "evict"), (2, 4, 2, 2, 1))[0]
        if operation == "unlock":
            driver.unlock(dice.randrange(100))
        elif operation == "evict":
            driver.evict(dice.randint(0, 30))
        else:
            getattr(driver, operation)(key)
        if number % 97 == 0 or len(driver.locked) > 40:
            driver.check()
            while len(driver.locked) > 20:
                driver.unlock(dice.randrange(100))
    driver.finish()


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_random_operations_short(page_size: int) -> None:
    driver = TreeDriver(page_size, num_pages=300, compare_every=10)
    run_random_operations(driver, 1_500, seed=page_size)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_random_operations_one_hundred_thousand(page_size: int) -> None:
    driver = TreeDriver(page_size, num_pages=300, compare_every=50)
    run_random_operations(driver, 100_000, seed=100 + page_size)
