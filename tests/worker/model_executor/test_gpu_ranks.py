"""Two ranks on a GPU each give the tokens of one: interpreted here, over gloo and loopback.

Whole starts: trial steps, graphs (run again as they stand) and warm-up are gone through together,
then steps of one token, of a few and of many. On GPUs it is ``tests/gpu/tensor_parallel.py``.
"""

from pathlib import Path

import pytest
from tests.scale import slow_case
from tests.worker.model_executor.rank_group import (
    INTERPRETED_GPU,
    Answer,
    Case,
    answers,
    run_group,
)
from tests.worker.model_executor.test_tensor_parallel import first_difference
from tests.worker.model_executor.tiny_models import save_tiny

from mizzen_worker.kernels.gpu.launching import IS_INTERPRETED

pytestmark = [
    pytest.mark.skipif(
        not IS_INTERPRETED, reason="missing: the interpreter (tests/gpu does this on GPUs)"
    ),
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize(
    ("variant", "changes", "steps"),
    [
        # A vocabulary of 200 has the same blocks on each rank, one of 199 others.
        ("llama3-biases", {"vocab_size": 200}, "captured"),
        slow_case("qwen3", {"num_hidden_layers": 2}, "captured"),
        slow_case("qwen3-moe", {"vocab_size": 200, "moe_intermediate_size": 64}, "captured"),
        slow_case("qwen3-moe", {"moe_intermediate_size": 64}, "eager"),
        slow_case("mistral-window", {}, "eager"),
    ],
)
def test_ranks_give_the_tokens_of_one(
    variant: str, changes: dict[str, object], steps: str, tmp_path: Path
) -> None:
    changes = {"intermediate_size": 128, "num_hidden_layers": 1, **changes}
    save_tiny(tmp_path, variant, **changes)
    case = Case(
        name=variant,
        folder=str(tmp_path),
        backend=INTERPRETED_GPU,
        uses_graphs=steps == "captured",
    )
    alone = answers(case, None)
    leader, follower = run_group(2, [case], tmp_path / "group")
    for request, expected in alone.items():
        found = leader[variant][request]
        assert follower[variant][request] == Answer(ids=found.ids), request
        assert len(found.ids) == len(expected.ids)
        if expected.logprobs:
            first_difference(expected, found, "float32", f"{variant} {request}")
