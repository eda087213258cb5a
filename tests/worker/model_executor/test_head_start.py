"""What begins beside the import of torch is done when it is needed, and never in the way."""

import pytest
from triton.runtime.cache import triton_key

from mizzen_worker.model_executor.head_start import begin_beside_imports


@pytest.mark.parametrize("device", ["cpu", "cuda:x", "gpu"])
def test_nothing_begins_without_a_gpu(device: str) -> None:
    assert begin_beside_imports(device) == ()


def test_the_library_is_hashed_once_whether_there_is_a_driver_or_not() -> None:
    triton_key.cache_clear()
    for thread in begin_beside_imports("cuda:0"):
        thread.join()
    assert triton_key.cache_info().currsize == 1
