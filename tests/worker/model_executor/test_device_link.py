"""A launch packs its numbers into two copies, waits for nothing, overwrites no copy in flight."""

import numpy as np
import pytest
import torch
from tests.worker.kernels.gpu.compiled_process import run_compiling
from tests.worker.model_executor.runner_driver import Driven
from tests.worker.model_executor.test_slot_state import replace_sampling

from mizzen_worker.contracts.batch import (
    DecodeRows,
    ExtendRow,
    PageWrite,
    ScheduleBatch,
    SlotInit,
)
from mizzen_worker.contracts.request import LogprobParams, SamplingParams
from mizzen_worker.model_executor.device_link import (
    HostLink,
    QueuedLink,
    StepPack,
)

CPU = torch.device("cpu")


class RecordedEvent:
    """An event that writes down what is asked of it."""

    def __init__(self, number: int, log: list[tuple[str, int]]) -> None:
        self._number = number
        self._log = log
        self.is_set = False

    def record(self) -> None:
        self.is_set = True
        self._log.append(("record", self._number))

    def synchronize(self) -> None:
        if self.is_set:
            self._log.append(("wait", self._number))


def recorded_link() -> tuple[QueuedLink, list[tuple[str, int]]]:
    log: list[tuple[str, int]] = []
    numbers = iter(range(100))
    return QueuedLink(CPU, lambda: RecordedEvent(next(numbers), log), is_pinned=False), log


def test_a_buffer_is_overwritten_only_after_the_copy_out_of_it() -> None:
    link, log = recorded_link()
    arrays = [np.arange(first, 6 * first, dtype=np.int32) for first in range(1, 7)]
    uploads = [link.upload(array.copy()) for array in arrays]
    assert log[:4] == [("record", number) for number in range(4)]
    assert log[4:] == [("wait", 0), ("record", 0), ("wait", 1), ("record", 1)]
    for upload, array in zip(uploads, arrays, strict=True):
        np.testing.assert_array_equal(upload.numpy(), array)


def test_a_download_waits_only_when_it_is_asked_for() -> None:
    link, log = recorded_link()
    pending = link.download([torch.tensor([4, 5]), torch.empty(0, 3)])
    assert log == [("record", 4)]
    first, second = pending.wait()
    assert log == [("record", 4), ("wait", 4)]
    assert first.tolist() == [4, 5]
    assert second.shape == (0, 3)


@pytest.mark.parametrize("link", [HostLink(), recorded_link()[0]])
@pytest.mark.parametrize("sizes", [(0, 0, 0), (3, 0, 1), (1, 4, 0), (2, 5, 3)])
def test_a_pack_arrives_as_it_was_packed(
    link: HostLink | QueuedLink, sizes: tuple[int, int, int]
) -> None:
    wide, whole, real = sizes
    pack = StepPack()
    pack.add_reals("real", np.linspace(-1, 1, real, dtype=np.float32))
    pack.add_integers("whole", np.arange(-2, whole - 2))
    pack.add_integers("other", np.arange(whole, dtype=np.int32))
    pack.add_wides("wide", np.arange(wide, dtype=np.int64) - 2**62)
    staged = pack.unpack(link.upload(pack.words()))
    assert staged.longs["wide"].tolist() == [index - 2**62 for index in range(wide)]
    assert staged.longs["whole"].tolist() == list(range(-2, whole - 2))
    assert staged.longs["other"].tolist() == list(range(whole))
    np.testing.assert_array_equal(
        staged.reals["real"].numpy(), np.linspace(-1, 1, real, dtype=np.float32)
    )
    assert all(values.dtype == torch.int64 for values in staged.longs.values())


PARAMS = [
    replace_sampling(temperature=0.0),
    replace_sampling(),
    replace_sampling(top_p=0.9, top_k=30, min_p=0.1, logprobs=LogprobParams(num_top=3)),
    replace_sampling(presence_penalty=1.0, repetition_penalty=1.1, top_p=0.5),
    replace_sampling(logit_bias=((3, 1.0),), stop_token_ids=(4, 5), min_new_tokens=9),
    replace_sampling(logprobs=LogprobParams(num_top=0, prompt_start=0)),
]


def entering_batch(params: list[SamplingParams]) -> ScheduleBatch:
    prompts = [Driven(slot, [slot, 2, 3], sampling) for slot, sampling in enumerate(params, 1)]
    return ScheduleBatch(
        step=1,
        extends=tuple(
            ExtendRow(
                request_id=request.request_id,
                slot=request.slot,
                start=0,
                num_new=3,
                token_ids=np.array(request.prompt, dtype=np.int32),
                is_sampled=True,
                target_ids=np.array([2, 3], dtype=np.int32) if request.slot == 6 else None,
            )
            for request in prompts
        ),
        decodes=DecodeRows(slots=np.empty(0, np.int32), starts=np.empty(0, np.int32)),
        slot_inits=tuple(
            SlotInit(
                slot=request.slot,
                sampling=request.sampling,
                num_prompt_tokens=3,
                num_generated_tokens=0,
                eos_token_ids=(1,),
                max_tokens=20,
                history=np.array(request.prompt, dtype=np.int32),
            )
            for request in prompts
        ),
        page_writes=tuple(
            PageWrite(slot=slot, first_page=0, pages=np.array([slot], dtype=np.int32))
            for slot in range(1, len(params) + 1)
        ),
    )


@pytest.mark.slow
def test_a_launch_asks_the_device_for_no_value_and_uploads_twice() -> None:
    run_compiling("tests.worker.model_executor.valueless_launch")


def test_a_device_without_values_refuses_to_give_one() -> None:
    with pytest.raises(RuntimeError):
        bool(torch.empty(3, device="meta").any())
