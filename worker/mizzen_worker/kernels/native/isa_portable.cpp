// Owns the form of the kernels for any processor that GCC or Clang compiles vectors for.
//
// Planes as in isa_avx2.cpp.
#include "kernels.h"

namespace mizzen {
namespace portable {
#include "vector.inc"

constexpr int kMaxRows = 2;
constexpr const char* kName = "portable";

struct Expanded {
  i32x16 even[2];
  i32x16 odd[2];
};

INLINE Expanded expand(u8x64 codes) {
  const u32x16 word = (u32x16)codes;
  Expanded out;
  out.even[0] = (i32x16)(word & 0xffu);
  out.odd[0] = (i32x16)((word >> 8) & 0xffu);
  out.even[1] = (i32x16)((word >> 16) & 0xffu);
  out.odd[1] = (i32x16)(word >> 24);
  return out;
}
INLINE i32x16 multiply_add(i32x16 acc, const i32x16 (&codes)[2], int32_t x) {
  const int32_t low = static_cast<int16_t>(x & 0xffff), high = x >> 16;
  return acc + codes[0] * low + codes[1] * high;
}
INLINE i32x16 dot_first(i32x16 acc, const Expanded& codes, int32_t x) {
  return multiply_add(acc, codes.even, x);
}
INLINE i32x16 dot_second(i32x16 acc, const Expanded& codes, int32_t x) {
  return multiply_add(acc, codes.odd, x);
}
INLINE i32x16 combine(i32x16 first, i32x16 second) { return first + second; }
INLINE float half_to_float(uint16_t half);
INLINE f32x16 load_half(const uint8_t* p) {
  uint16_t raw[16];
  __builtin_memcpy(raw, p, sizeof(raw));
  f32x16 out;
  for (int i = 0; i < 16; ++i) out[i] = half_to_float(raw[i]);
  return out;
}
INLINE void store_planes(i32x16 x, int32_t* first, int32_t* second) {
  for (int g = 0; g < 4; ++g) {
    first[g] = (x[4 * g] & 0xffff) | (x[4 * g + 2] << 16);
    second[g] = (x[4 * g + 1] & 0xffff) | (x[4 * g + 3] << 16);
  }
}

#include "linear.inc"
#include "elementwise.inc"
#include "attention.inc"
#include "sampling.inc"
#include "table.inc"
}  // namespace portable

const Kernels* kernels_portable() { return &portable::kTable; }
}  // namespace mizzen
