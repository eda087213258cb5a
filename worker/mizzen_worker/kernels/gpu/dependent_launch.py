"""Owns the two steps by which a kernel takes part in dependent launches; see ``launching.py``."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def let_next_begin(PDL: tl.constexpr):
    """The next kernel may start on what this one leaves free."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """What the previous kernels wrote is there afterwards."""
    if PDL:
        gdc_wait()


@triton.jit
def begin_dependent(PDL: tl.constexpr):
    """Both, after what is loaded ahead was asked for."""
    let_next_begin(PDL)
    wait_for_previous(PDL)
