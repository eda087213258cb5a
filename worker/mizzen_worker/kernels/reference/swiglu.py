"""Owns the meaning of the gate/up product with SwiGLU over alternating rows."""

import torch


def swiglu(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``inputs`` [tokens, size], ``weight`` [2 * inner, size] with rows gate 0, up 0, gate 1, ...

    ``bias`` [2 * inner] float32 in their order. Computed in float32, rounded once to the dtype of
    ``inputs``: [tokens, inner].
    """
    products = inputs.float() @ weight.float().t()
    if bias is not None:
        products += bias
    gate, up = products[:, 0::2], products[:, 1::2]
    return (torch.nn.functional.silu(gate) * up).to(inputs.dtype)
