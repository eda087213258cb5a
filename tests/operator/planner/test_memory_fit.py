"""Whether a model fits is said with the whole sum, and what is not known refuses nothing."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.documents import resolved
from tests.operator.planner.model_facts import facts

from mizzen_operator.planner.memory_fit import FitReason, MemoryFit, memory_fit
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.shape_facts import shape_facts_of

LACK = "nobody told"


def on_gpu(engine: dict[str, Any] | None = None, **gpu: Any) -> Resolved:
    return resolved(engine=engine or {}, worker={"gpu": {"countPerNode": 1, **gpu}})


def on_cpu(memory: str, engine: dict[str, Any] | None = None, **worker: Any) -> Resolved:
    worker = {"resources": {"limits": {"memory": memory}}, **worker}
    return resolved(topology="Split", engine=engine or {}, worker=worker)


def judged(service: Resolved, **changed: Any) -> MemoryFit:
    fit = memory_fit(service, facts(**changed), LACK)
    assert fit is not None
    return fit


def test_without_stated_memory_nothing_is_told() -> None:
    assert memory_fit(on_gpu(), facts(), LACK) is None
    assert memory_fit(resolved(), facts(), LACK) is None
    limits = {"resources": {"limits": {"memory": "1Gi"}}, "gpu": {"countPerNode": 1}}
    assert memory_fit(resolved(worker=limits), facts(), LACK) is None
    assert memory_fit(on_cpu("1Gi"), None, LACK) is None


def test_what_does_not_fit_is_said_with_the_sum_and_every_way_out() -> None:
    fit = judged(on_gpu({"kvTokens": 131_072}, **{"class": "nvidia-l4"}))
    assert fit.reason is FitReason.DOES_NOT_FIT
    assert fit.message == (
        "weights 14.96 GiB + CUDA 0.60 GiB + largest step 1.13 GiB + graphs 1.50 GiB + KV 131136"
        " tokens x 128 KiB 16.01 GiB = 34.20 GiB > 20.24 GiB (0.9 of the 22.49 GiB of nvidia-l4);"
        " lower spec.engine.kvTokens to 16704, or take GPUs of 38.00 GiB (nvidia-a100-40gb,"
        " nvidia-l40s, nvidia-h100-80gb)"
    )
    proposed = judged(on_gpu({"kvTokens": 16_704}, **{"class": "nvidia-l4"}))
    assert proposed.reason is FitReason.FITS
    assert judged(on_gpu({"kvTokens": 16_768}, **{"class": "nvidia-l4"})).is_refused


def test_what_fits_is_said_with_the_sum_and_the_room() -> None:
    fit = judged(on_gpu(memory="80Gi"))
    assert fit.reason is FitReason.FITS
    assert fit.message == (
        "weights 14.96 GiB + CUDA 0.60 GiB + largest step 1.13 GiB + graphs 1.50 GiB = 18.20 GiB"
        " of 72.00 GiB (0.9 of the 80.00 GiB of spec.worker.gpu.memory); room for 440640 tokens of"
        " KV memory x 128 KiB"
    )
    assert fit.waits_for == ""


def test_a_gpu_that_the_largest_step_fills() -> None:
    fit = judged(on_gpu(memory="19Gi"))
    assert fit.is_refused
    assert "; lower --max-chunk-tokens or --max-running-requests in spec.engine.args, or take" in (
        fit.message
    )
    assert "kvTokens" not in fit.message


def test_a_gpu_that_weights_alone_fill_is_left_no_other_way_than_a_larger_one() -> None:
    fit = judged(on_gpu(memory="16Gi"))
    assert fit.is_refused
    assert fit.message.endswith(
        "(0.9 of the 16.00 GiB of spec.worker.gpu.memory); take GPUs of 20.24 GiB (nvidia-a10,"
        " nvidia-a10g, nvidia-l4)"
    )
    assert fit.waits_for == "the model does not fit: condition Fits shows the sum"


@pytest.mark.parametrize(
    ("engine", "fits"),
    [
        ({}, False),
        ({"args": ["--quantization=fp8"]}, True),
        ({"args": ["--quantization", "fp8"]}, True),
        ({"args": ["--memory-fraction", "0.2", "--quantization", "fp8"]}, False),
        ({"args": ["--quantization", "fp8", "--quantization", "none"]}, False),
        ({"args": ["--max-chunk-tokens", "512", "--max-running-requests", "8"]}, True),
        ({"args": ["--max-chunk-tokens", "512", "--cuda-graphs", "off"]}, True),
        ({"dtype": "float32"}, False),
    ],
)
def test_arguments_and_fields_of_the_engine_count(engine: dict[str, Any], fits: bool) -> None:  # noqa: FBT001
    assert judged(on_gpu(engine, memory="19Gi")).is_refused is not fits


def test_kv_of_fp8_takes_half() -> None:
    assert "x 64 KiB" in judged(on_gpu({"args": ["--kv-dtype", "fp8"]}, memory="80Gi")).message
    assert "x 64 KiB" in judged(on_gpu(memory="80Gi"), hasFp8Kv=True).message


def test_own_classes_win() -> None:
    service = on_gpu(**{"class": "ours"})
    fit = judged(service)
    assert fit.reason is FitReason.CLASS_NOT_KNOWN
    assert fit.message.startswith("spec.worker.gpu.class: ours is none of nvidia-a10, ")
    assert not fit.is_refused
    known = replace(service, gpu_classes=(("ours", 80 << 30),))
    assert judged(known).reason is FitReason.FITS


@pytest.mark.parametrize(
    ("engine", "changed", "because"),
    [
        ({}, {"fileFormat": "gguf"}, "the sizes of gguf files do not tell what weights take"),
        ({"args": ["--deterministic"]}, {}, "--deterministic in spec.engine.args changes"),
        ({"args": ["--config=/x"]}, {}, "--config in spec.engine.args changes"),
        ({"args": ["--memory-fraction", "2"]}, {}, "--memory-fraction '2' in spec.engine.args"),
        ({"args": ["--memory-fraction=1e-320"]}, {}, "--memory-fraction '1e-320' in"),
        ({"args": ["--max-chunk-tokens"]}, {}, None),
        ({"args": ["--max-chunk-tokens", "x"]}, {}, "--max-chunk-tokens 'x' in spec.engine.args"),
        ({"args": ["--quantization=int4"]}, {}, "--quantization 'int4' in spec.engine.args"),
    ],
)
def test_what_is_not_foreseen_refuses_nothing(
    engine: dict[str, Any], changed: dict[str, Any], because: str | None
) -> None:
    fit = judged(on_gpu(engine, memory="16Gi"), **changed)
    if because is None:
        assert fit.is_refused
        return
    assert fit.reason is FitReason.SIZES_NOT_KNOWN
    assert fit.message.startswith(f"not known: {because}")


def test_sizes_that_nobody_told() -> None:
    fit = memory_fit(on_gpu(memory="16Gi"), None, LACK)
    assert fit is not None
    assert (fit.reason, fit.is_refused) == (FitReason.SIZES_NOT_KNOWN, False)
    assert fit.message.startswith(f"not known: {LACK}; pods start unchecked")


def test_a_pods_limit_is_what_counts_on_the_cpu() -> None:
    fit = judged(on_cpu("8Gi"))
    assert fit.message == (
        "weights 14.96 GiB + KV 16400 tokens x 256 KiB 4.00 GiB = 18.96 GiB > 8.00 GiB"
        " (spec.worker.resources.limits.memory); raise spec.worker.resources.limits.memory well"
        " above 18.96 GiB"
    )
    fit = judged(on_cpu("17Gi", {"dtype": "bfloat16", "kvTokens": 100_000}))
    assert "lower spec.engine.kvTokens to 16704, or raise" in fit.message
    assert not judged(on_cpu("20Gi")).is_refused


def test_ranks_of_a_pod_share_its_limit() -> None:
    one_pod = judged(on_cpu("16Gi", parallelism={"tensor": 2}))
    assert one_pod.message.startswith("weights of one of 2 ranks 7.48 GiB + KV 16400 tokens x 128")
    assert "8.00 GiB (spec.worker.resources.limits.memory, shared by 2 ranks)" in one_pod.message
    assert "well above 18.96 GiB" in one_pod.message
    assert not judged(on_cpu("16Gi", parallelism={"tensor": 2, "nodes": 2})).is_refused


def test_ranks_that_do_not_divide_the_model_are_not_reckoned_with() -> None:
    fit = judged(on_cpu("1Gi", parallelism={"tensor": 3}))
    assert fit.message.startswith("not known: 3 ranks do not divide the model's 32 attention heads")


@pytest.mark.parametrize(
    "told",
    [None, [], {}, "x", {"numLayers": 1}, {**facts().model_dump(by_alias=True)} | {"numHeads": 0}],
)
def test_facts_of_another_form_are_none(told: object) -> None:
    assert shape_facts_of(told) is None


def test_what_a_later_release_adds_is_passed_over() -> None:
    assert shape_facts_of({**facts().model_dump(by_alias=True), "more": 1}) == facts()
