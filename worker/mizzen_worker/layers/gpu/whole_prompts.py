"""Owns attention of a step whose rows are whole prompts of one length; any other step is not its.

Such a step (long prompts cut into equal chunks, benchmarks) needs no pages: queries, keys and
values lie side by side in the projection, and the library's kernel (cuDNN on a GPU) is faster than
ours there, 606 to 505 TFLOP/s measured on an H200. It prepares a plan for every shape it sees for
the first time, so only lengths that come again are given to it.
"""

from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from mizzen_worker.kernels.gpu.launching import has_tensor_copies
from mizzen_worker.layers.gpu.step import GpuStep

_LENGTH_STEP = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePrompts:
    """``num_rows`` prompts of ``length`` tokens, each from its first token.

    Scores are scaled by head_dim ** -0.5 and nothing else: no soft cap, no sinks.
    """

    num_rows: int
    length: int

    def attend(self, queries: torch.Tensor, projected: torch.Tensor) -> torch.Tensor:
        """Causal attention: [num_tokens, num_heads * head_dim].

        ``queries`` [num_tokens, num_heads, head_dim]; ``projected`` [num_tokens, columns] has
        rotated keys, then values, in its last columns.
        """
        num_heads, head_dim = queries.shape[1:]
        heads = projected.view(self.num_rows, self.length, -1, head_dim)[:, :, num_heads:]
        keys, values = heads.chunk(2, dim=2)
        by_row = queries.view(self.num_rows, self.length, num_heads, head_dim)
        backend = SDPBackend.CUDNN_ATTENTION if queries.is_cuda else SDPBackend.MATH
        with sdpa_kernel(backend):
            attended = torch.nn.functional.scaled_dot_product_attention(
                by_row.transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                is_causal=True,
                enable_gqa=True,
            )
        return attended.transpose(1, 2).reshape(len(queries), num_heads * head_dim)


def find_whole_prompts(step: GpuStep, dtype: torch.dtype) -> WholePrompts | None:
    """The step's prompts, None where the paged kernel must or had better do it."""
    batch, pool = step.batch, step.pool
    if not step.is_exact or not batch.num_rows or pool.keys(0).dtype != dtype:
        return None
    length = int(batch.row_lengths[0])
    is_whole = length > 0 and length * batch.num_rows == batch.num_tokens
    is_equal = is_whole and bool((batch.row_lengths == length).all())
    if not is_equal or length % _LENGTH_STEP or not _is_served(step, dtype):
        return None
    # Rows of one length that fill the step begin at 0: no row has more new tokens than positions.
    return WholePrompts(num_rows=batch.num_rows, length=length)


def _is_served(step: GpuStep, dtype: torch.dtype) -> bool:
    """Whether cuDNN has a kernel; anything will do on a CPU."""
    if not step.batch.token_ids.is_cuda:
        return True
    head_dim = step.settings.head_dim
    is_type = dtype in {torch.bfloat16, torch.float16}
    is_built = bool(torch.backends.cudnn.is_available())  # type: ignore[no-untyped-call]
    return has_tensor_copies() and is_type and head_dim % 8 == 0 and head_dim <= 128 and is_built
