"""Random numbers are a pure function of (seed, position) and look uniform."""

import numpy as np
import torch

from mizzen_worker.sampler.counter_random import uniform


def draw(seeds: list[int], positions: list[int]) -> np.ndarray:
    return uniform(torch.tensor(seeds), torch.tensor(positions)).numpy()


def test_same_seed_and_position_give_the_same_number_in_any_batch() -> None:
    alone = draw([7], [12])[0]
    together = draw([3, 7, -9, 7], [12, 12, 12, 13])
    assert together[1] == alone
    assert len(set(together.tolist())) == 4


def test_numbers_are_uniform_over_positions_and_over_seeds() -> None:
    count = 200_000
    for values in (draw([5] * count, list(range(count))), draw(list(range(count)), [5] * count)):
        assert values.min() >= 0
        assert values.max() < 1
        observed, _ = np.histogram(values, bins=100, range=(0, 1))
        chi_square = ((observed - count / 100) ** 2 / (count / 100)).sum()
        assert chi_square < 149  # 99 degrees of freedom, one in a thousand


def test_neighbouring_positions_and_seeds_are_uncorrelated() -> None:
    count = 100_000
    by_position = draw([5] * count, list(range(count)))
    next_seed = draw([6] * count, list(range(count)))
    for other in (np.roll(by_position, 1), next_seed):
        assert abs(np.corrcoef(by_position, other)[0, 1]) < 0.015


def whole_number_draw(seed: int, position: int) -> float:
    """The definition in unbounded integers; it must never change, or resumed requests would."""
    mask = (1 << 64) - 1

    def mix(value: int) -> int:
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    golden = 0x9E3779B97F4A7C15
    keyed = mix((seed + golden) & mask)
    mixed = mix(keyed ^ ((position * golden + 0xBF58476D1CE4E5B9) & mask))
    return (mixed >> 11) * 2.0**-53


def test_numbers_equal_their_definition_in_whole_numbers() -> None:
    pairs = [(0, 0), (1, 5), (-1, 1000), (2**62 + 12345, 8191), (-(2**63), 1)]
    expected = [whole_number_draw(seed, position) for seed, position in pairs]
    seeds, positions = ([pair[i] for pair in pairs] for i in (0, 1))
    np.testing.assert_array_equal(draw(seeds, positions), expected)
