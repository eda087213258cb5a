// Owns the AVX2 form of the kernels: every 16-lane vector is two registers.
//
// Planes: of each group of 4 columns, X of columns 0 and 2, and of columns 1 and 3, as int16 pairs;
// VPMADDWD multiplies them with the even and odd codes.
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2")
namespace mizzen {
namespace avx2 {
#include "vector.inc"

constexpr int kMaxRows = 4;
constexpr const char* kName = "avx2";

struct Expanded {
  __m256i even[2];
  __m256i odd[2];
};
union Halves {
  i32x16 whole;
  u8x64 bytes;
  f32x16 floats;
  __m256i half[2];
  __m256 float_half[2];
};

INLINE Expanded expand(u8x64 codes) {
  Halves in;
  in.bytes = codes;
  const __m256i mask = _mm256_set1_epi16(0x00ff);
  Expanded out;
  for (int i = 0; i < 2; ++i) {
    out.even[i] = _mm256_and_si256(in.half[i], mask);
    out.odd[i] = _mm256_srli_epi16(in.half[i], 8);
  }
  return out;
}
INLINE i32x16 multiply_add(i32x16 acc, const __m256i (&codes)[2], int32_t x) {
  Halves sum;
  sum.whole = acc;
  const __m256i pair = _mm256_set1_epi32(x);
  for (int i = 0; i < 2; ++i) {
    sum.half[i] = _mm256_add_epi32(sum.half[i], _mm256_madd_epi16(codes[i], pair));
  }
  return sum.whole;
}
INLINE i32x16 dot_first(i32x16 acc, const Expanded& codes, int32_t x) {
  return multiply_add(acc, codes.even, x);
}
INLINE i32x16 dot_second(i32x16 acc, const Expanded& codes, int32_t x) {
  return multiply_add(acc, codes.odd, x);
}
INLINE i32x16 combine(i32x16 first, i32x16 second) { return first + second; }
INLINE f32x16 load_half(const uint8_t* p) {
  Halves out;
  for (int i = 0; i < 2; ++i) {
    out.float_half[i] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i));
  }
  return out.floats;
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
}  // namespace avx2
}  // namespace mizzen
#pragma GCC pop_options

namespace mizzen {
const Kernels* kernels_avx2() {
  const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                   __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  return has ? &avx2::kTable : nullptr;
}
}  // namespace mizzen
#else
namespace mizzen {
const Kernels* kernels_avx2() { return nullptr; }
}  // namespace mizzen
#endif
