// Owns the AVX-512 + VNNI form of the kernels. No AMX: it is listed on machines where it faults.
//
// Planes: X = 256 * high + low, both int8; VPDPBUSD multiplies them with the unsigned codes.
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of _mm512_undefined_ps
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,bmi2")
namespace mizzen {
namespace avx512 {
#include "vector.inc"

constexpr int kMaxRows = 8;
constexpr const char* kName = "avx512";
typedef u8x64 Expanded;

INLINE Expanded expand(u8x64 codes) { return codes; }
INLINE i32x16 dot_first(i32x16 acc, Expanded codes, int32_t x) {
  return (i32x16)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)codes, _mm512_set1_epi32(x));
}
INLINE i32x16 dot_second(i32x16 acc, Expanded codes, int32_t x) { return dot_first(acc, codes, x); }
INLINE i32x16 combine(i32x16 first, i32x16 second) { return (first << 8) + second; }
INLINE f32x16 load_half(const uint8_t* p) {
  return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
INLINE void store_planes(i32x16 x, int32_t* first, int32_t* second) {
  const i32x16 high = (x + 128) >> 8;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(first), _mm512_cvtepi32_epi8((__m512i)high));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(second),
                   _mm512_cvtepi32_epi8((__m512i)(x - (high << 8))));
}

#include "linear.inc"
#include "elementwise.inc"
#include "attention.inc"
#include "sampling.inc"
#include "table.inc"
}  // namespace avx512
}  // namespace mizzen
#pragma GCC pop_options

namespace mizzen {
const Kernels* kernels_avx512() {
  const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") &&
                   __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  return has ? &avx512::kTable : nullptr;
}
}  // namespace mizzen
#else
namespace mizzen {
const Kernels* kernels_avx512() { return nullptr; }
}  // namespace mizzen
#endif
