"""How much room for keys and values is left, in numbers that can be added up by hand."""

import pytest

from mizzen_worker.contracts.errors import ConfigError, ModelLoadError
from mizzen_worker.memory.plan import (
    GIB,
    MemoryUse,
    PageSizes,
    choose_num_pages,
    kv_token_bytes,
    require_room_for_weights,
)

PAGE = PageSizes(page_size=16, page_bytes=GIB)


def _use(**changes: int) -> MemoryUse:
    sizes = {"total_bytes": 100 * GIB, "weights_bytes": 40 * GIB, "other_bytes": GIB}
    steps = {"step_bytes": 5 * GIB, "graphs_bytes": 4 * GIB}
    return MemoryUse(fraction=0.9, **(sizes | steps | changes))


def test_keys_and_values_of_known_models() -> None:
    llama8b = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128}
    assert kv_token_bytes(**llama8b, value_bytes=2) == 131_072
    qwen06b = {"num_layers": 28, "num_kv_heads": 8, "head_dim": 128}
    assert kv_token_bytes(**qwen06b, value_bytes=2) == 114_688


def test_what_is_left_becomes_pages_and_one_of_them_the_sink() -> None:
    assert _use().left_bytes == 40 * GIB
    assert choose_num_pages(_use(), PAGE, None) == 39
    assert choose_num_pages(_use(), PAGE, 39 * 16 + 15) == 39
    assert choose_num_pages(_use(), PAGE, 16) == 1


def test_too_many_positions_are_refused_with_the_sum() -> None:
    with pytest.raises(ConfigError) as raised:
        choose_num_pages(_use(), PAGE, 40 * 16)
    assert str(raised.value) == (
        "--kv-tokens: 640 positions take 41.0 GiB; of 100.0 GiB --memory-fraction 0.9 allows 90.0: "
        "weights 40.0, CUDA and other processes 1.0, the largest step 5.0, graphs 4.0; left for KV "
        "40.0 GiB, room for 624 positions; lower it to that, or leave it to auto"
    )


@pytest.mark.parametrize("changes", [{"weights_bytes": 79 * GIB}, {"other_bytes": 60 * GIB}])
def test_no_room_at_all_is_one_sentence(changes: dict[str, int]) -> None:
    with pytest.raises(ModelLoadError, match=r"no room for KV memory: of 100.0 GiB .* lower --max"):
        choose_num_pages(_use(**changes), PAGE, None)


def test_weights_that_cannot_fit_are_refused_before_they_are_read() -> None:
    require_room_for_weights(weights_bytes=GIB, free_bytes=GIB, dtype="bfloat16")
    with pytest.raises(ModelLoadError, match=r"weights take 2.0 GiB in bfloat16 .* 1.0 GiB free"):
        require_room_for_weights(weights_bytes=2 * GIB, free_bytes=GIB, dtype="bfloat16")
