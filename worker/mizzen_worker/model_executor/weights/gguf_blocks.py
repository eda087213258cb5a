"""Owns the byte layout of GGUF's block formats; reads no files and builds no layers.

Each decoder takes the raw bytes of a matrix, [rows, blocks, block bytes] uint8, and returns a
``QuantisedMatrix``. Super-block formats (K quants: 256 columns) come out as blocks of 16 or 32.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mizzen_worker.kernels.quantised_matrix import Codes, QuantisedMatrix

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """One GGUF format: its name, columns and bytes of a block, and how to decode it."""

    name: str
    columns: int
    size_bytes: int
    decode: Callable[[Codes], QuantisedMatrix]


def _half(raw: Codes) -> Floats:
    """[..., 2n] bytes to [..., n] float32 (stored as float16)."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _nibbles(packed: Codes) -> Codes:
    """[..., 16] bytes to [..., 32]: all low nibbles, then all high nibbles."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _fifth_bits(raw: Codes) -> Codes:
    """[..., 4] bytes (32 bits, little endian) to [..., 32] bytes of 0 or 16."""
    return np.unpackbits(raw.astype(np.uint8, copy=False), axis=-1, bitorder="little") << 4


def _matrix(
    codes: Codes, scales: Floats, minimums: Floats | None, code_bits: int
) -> QuantisedMatrix:
    """Flatten [rows, ..., block] codes and [rows, ...] scales."""
    rows, block_size = codes.shape[0], codes.shape[-1]
    return QuantisedMatrix(
        codes=np.ascontiguousarray(codes.reshape(rows, -1)),
        scales=np.ascontiguousarray(scales.reshape(rows, -1)),
        minimums=None if minimums is None else np.ascontiguousarray(minimums.reshape(rows, -1)),
        block_size=block_size,
        code_bits=code_bits,
    )


def _signed(codes: Codes, zero: int) -> Codes:
    return codes.astype(np.int8) - np.int8(zero)


def _q4_0(raw: Codes) -> QuantisedMatrix:
    return _matrix(_signed(_nibbles(raw[..., 2:]), 8), _half(raw[..., :2]), None, 4)


def _q4_1(raw: Codes) -> QuantisedMatrix:
    return _matrix(_nibbles(raw[..., 4:]), _half(raw[..., :2]), _half(raw[..., 2:4]), 4)


def _q5_0(raw: Codes) -> QuantisedMatrix:
    codes = _nibbles(raw[..., 6:]) | _fifth_bits(raw[..., 2:6])
    return _matrix(_signed(codes, 16), _half(raw[..., :2]), None, 8)


def _q5_1(raw: Codes) -> QuantisedMatrix:
    codes = _nibbles(raw[..., 8:]) | _fifth_bits(raw[..., 4:8])
    return _matrix(codes, _half(raw[..., :2]), _half(raw[..., 2:4]), 8)


def _q8_0(raw: Codes) -> QuantisedMatrix:
    codes = np.ascontiguousarray(raw[..., 2:]).view(np.int8)
    return _matrix(codes, _half(raw[..., :2]), None, 8)


def _two_bit_planes(packed: Codes) -> Codes:
    """[..., 64] bytes to [..., 256] values of two bits.

    Each half of 32 bytes holds 128 columns: columns 32 i to 32 i + 31 are its bits 2 i, 2 i + 1.
    """
    halves = packed.reshape(*packed.shape[:-1], 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)
    return ((halves >> shifts) & 3).reshape(*packed.shape[:-1], 256)


def _q2_k(raw: Codes) -> QuantisedMatrix:
    """16 bytes of scales and minimums (4 bits each), 64 of codes, d, dmin."""
    packed_scales = raw[..., :16]
    d, d_minimum = _half(raw[..., 80:82]), _half(raw[..., 82:84])
    codes = _two_bit_planes(raw[..., 16:80]).reshape(*raw.shape[:-1], 16, 16)
    scales = d * (packed_scales & 0x0F).astype(np.float32)
    minimums = -(d_minimum * (packed_scales >> 4).astype(np.float32))
    return _matrix(codes, scales, minimums, 4)


def _q3_k_scales(packed: Codes) -> Codes:
    """12 bytes to 16 scales of 6 bits: low nibbles in bytes 0 to 7, high bits in bytes 8 to 11."""
    low = np.concatenate([packed[..., :8] & 0x0F, packed[..., :8] >> 4], axis=-1)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)
    high = ((packed[..., None, 8:12] >> shifts) & 3).reshape(*packed.shape[:-1], 16)
    return _signed(low | (high << 4), 32)


def _q3_k(raw: Codes) -> QuantisedMatrix:
    """32 bytes of third bits, 64 of low bits, 12 of scales, d."""
    low = _two_bit_planes(raw[..., 32:96])
    bit = np.arange(8, dtype=np.uint8).reshape(8, 1)
    third = ((raw[..., None, :32] >> bit) & 1).reshape(*raw.shape[:-1], 256)
    codes = _signed(low | (third << 2), 4).reshape(*raw.shape[:-1], 16, 16)
    scales = _half(raw[..., 108:110]) * _q3_k_scales(raw[..., 96:108]).astype(np.float32)
    return _matrix(codes, scales, None, 4)


def _k_scales_minimums(raw: Codes) -> tuple[Floats, Floats]:
    """d, dmin and 12 bytes of 8 scales and 8 minimums (6 bits each), of Q4_K and Q5_K."""
    d, d_minimum = _half(raw[..., 0:2]), _half(raw[..., 2:4])
    first, second, high = raw[..., 4:8], raw[..., 8:12], raw[..., 12:16]
    scales = np.concatenate([first & 63, (high & 0x0F) | ((first >> 6) << 4)], axis=-1)
    minimums = np.concatenate([second & 63, (high >> 4) | ((second >> 6) << 4)], axis=-1)
    return d * scales.astype(np.float32), -(d_minimum * minimums.astype(np.float32))


def _k_nibbles(packed: Codes) -> Codes:
    """128 bytes to [..., 8, 32]: each 32 bytes hold 32 low nibbles, then 32 high nibbles."""
    return _nibbles(packed.reshape(*packed.shape[:-1], 4, 32)).reshape(*packed.shape[:-1], 8, 32)


def _q4_k(raw: Codes) -> QuantisedMatrix:
    scales, minimums = _k_scales_minimums(raw)
    return _matrix(_k_nibbles(raw[..., 16:144]), scales, minimums, 4)


def _q5_k(raw: Codes) -> QuantisedMatrix:
    scales, minimums = _k_scales_minimums(raw)
    bit = np.arange(8, dtype=np.uint8).reshape(8, 1)
    fifth = ((raw[..., None, 16:48] >> bit) & 1) << 4
    return _matrix(_k_nibbles(raw[..., 48:176]) | fifth, scales, minimums, 8)


def _q6_k(raw: Codes) -> QuantisedMatrix:
    """128 bytes of low nibbles, 64 of high bits, 16 signed scales, d."""
    shape = raw.shape[:-1]
    low = raw[..., :128].reshape(*shape, 2, 1, 64)
    low = (low >> np.array([0, 4], dtype=np.uint8).reshape(2, 1)) & 0x0F
    codes = low.reshape(*shape, 256) | (_two_bit_planes(raw[..., 128:192]) << 4)
    signed_scales = np.ascontiguousarray(raw[..., 192:208]).view(np.int8)
    scales = _half(raw[..., 208:210]) * signed_scales.astype(np.float32)
    return _matrix(_signed(codes, 32).reshape(*shape, 16, 16), scales, None, 8)


_FORMATS = (
    BlockFormat(name="Q4_0", columns=32, size_bytes=18, decode=_q4_0),
    BlockFormat(name="Q4_1", columns=32, size_bytes=20, decode=_q4_1),
    BlockFormat(name="Q5_0", columns=32, size_bytes=22, decode=_q5_0),
    BlockFormat(name="Q5_1", columns=32, size_bytes=24, decode=_q5_1),
    BlockFormat(name="Q8_0", columns=32, size_bytes=34, decode=_q8_0),
    BlockFormat(name="Q2_K", columns=256, size_bytes=84, decode=_q2_k),
    BlockFormat(name="Q3_K", columns=256, size_bytes=110, decode=_q3_k),
    BlockFormat(name="Q4_K", columns=256, size_bytes=144, decode=_q4_k),
    BlockFormat(name="Q5_K", columns=256, size_bytes=176, decode=_q5_k),
    BlockFormat(name="Q6_K", columns=256, size_bytes=210, decode=_q6_k),
)

FORMAT_BY_NAME = {block_format.name: block_format for block_format in _FORMATS}
