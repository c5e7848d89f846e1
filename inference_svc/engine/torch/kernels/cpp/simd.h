// One vocabulary of vector operations for all levels: VL floats or int32 at a time.
//
// Multiply-add is written out as `fma`, and the compiler is told not to contract, so that the order
// and the rounding of every addition are those of the source, whatever function it is inlined into.
// `vmax(a, b)` and `vmin(a, b)` give b when either is NaN: put the value to watch second.
#pragma once
#include <stdint.h>
#include <string.h>

#include "model.h"

#if CM_LEVEL >= 1
#include <immintrin.h>
#endif

namespace cm {
namespace CM_NAMESPACE {

static inline int imin(int a, int b) { return a < b ? a : b; }
static inline int imax(int a, int b) { return a > b ? a : b; }

#if CM_LEVEL >= 2  // AVX-512 with VNNI
constexpr int VL = 16;
typedef __m512 VF;
typedef __m512i VI;
static inline VF load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, VF v) { _mm512_storeu_ps(p, v); }
static inline VI load(const int32_t* p) { return _mm512_loadu_si512(p); }
static inline void store(int32_t* p, VI v) { _mm512_storeu_si512(p, v); }
static inline VI load_bytes(const void* p) { return _mm512_loadu_si512(p); }
static inline VF set(float v) { return _mm512_set1_ps(v); }
static inline VI seti(int32_t v) { return _mm512_set1_epi32(v); }
static inline VF fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
static inline VF vmax(VF a, VF b) { return _mm512_max_ps(a, b); }
static inline VF vmin(VF a, VF b) { return _mm512_min_ps(a, b); }
static inline VI vmaxi(VI a, VI b) { return _mm512_max_epi32(a, b); }
static inline VI vmini(VI a, VI b) { return _mm512_min_epi32(a, b); }
static inline VI addi(VI a, VI b) { return _mm512_add_epi32(a, b); }
static inline VI subi(VI a, VI b) { return _mm512_sub_epi32(a, b); }
static inline VI andi(VI a, VI b) { return _mm512_and_si512(a, b); }
static inline VI shift_left(VI a, int n) { return _mm512_slli_epi32(a, n); }
static inline VI to_int(VF v) { return _mm512_cvtps_epi32(v); }  // to nearest, ties to even
static inline VF to_float(VI v) { return _mm512_cvtepi32_ps(v); }
static inline VI bits(VF v) { return _mm512_castps_si512(v); }
static inline VF floats(VI v) { return _mm512_castsi512_ps(v); }
static inline float sum(VF v) { return _mm512_reduce_add_ps(v); }
static inline float largest(VF v) { return _mm512_reduce_max_ps(v); }
static inline int32_t sumi(VI v) { return _mm512_reduce_add_epi32(v); }
static inline int32_t largesti(VI v) { return _mm512_reduce_max_epi32(v); }
static inline void store_int8(int8_t* p, VI v) {
  _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(v));
}
// 1 / v within 1 ulp for normal v: an estimate of 14 bits and one step of Newton's method.
static inline VF reciprocal(VF v) {
  VF r = _mm512_rcp14_ps(v);
  return r * fma(set(0.f) - v, r, set(2.f));
}
static inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
// acc += dot products of 4 bytes: w (stored with 128 added) by a; the caller takes kOffset * sum(a)
// off the total.
constexpr int kOffset = 128;
static inline VI dot4(VI acc, VI w, VI a) { return _mm512_dpbusd_epi32(acc, w, a); }
#elif CM_LEVEL == 1  // AVX2 and FMA
constexpr int VL = 8;
typedef __m256 VF;
typedef __m256i VI;
static inline VF load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, VF v) { _mm256_storeu_ps(p, v); }
static inline VI load(const int32_t* p) { return _mm256_loadu_si256((const VI*)p); }
static inline void store(int32_t* p, VI v) { _mm256_storeu_si256((VI*)p, v); }
static inline VI load_bytes(const void* p) { return _mm256_loadu_si256((const VI*)p); }
static inline VF set(float v) { return _mm256_set1_ps(v); }
static inline VI seti(int32_t v) { return _mm256_set1_epi32(v); }
static inline VF fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
static inline VF vmax(VF a, VF b) { return _mm256_max_ps(a, b); }
static inline VF vmin(VF a, VF b) { return _mm256_min_ps(a, b); }
static inline VI vmaxi(VI a, VI b) { return _mm256_max_epi32(a, b); }
static inline VI vmini(VI a, VI b) { return _mm256_min_epi32(a, b); }
static inline VI addi(VI a, VI b) { return _mm256_add_epi32(a, b); }
static inline VI subi(VI a, VI b) { return _mm256_sub_epi32(a, b); }
static inline VI andi(VI a, VI b) { return _mm256_and_si256(a, b); }
static inline VI shift_left(VI a, int n) { return _mm256_slli_epi32(a, n); }
static inline VI to_int(VF v) { return _mm256_cvtps_epi32(v); }
static inline VF to_float(VI v) { return _mm256_cvtepi32_ps(v); }
static inline VI bits(VF v) { return _mm256_castps_si256(v); }
static inline VF floats(VI v) { return _mm256_castsi256_ps(v); }
static inline void store_int8(int8_t* p, VI v) {
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(words, words));
}
static inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
// Without VNNI: |a| * sign(w, a) in pairs fits int16, as neither exceeds 127.
constexpr int kOffset = 0;
static inline VI dot4(VI acc, VI w, VI a) {
  VI value = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
  VI pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(value, a));
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#else  // any CPU: vectors of GCC and Clang, four floats
constexpr int VL = 4;
typedef float VF __attribute__((vector_size(16)));
typedef int32_t VI __attribute__((vector_size(16)));
template <class T> static inline T load_any(const void* p) {
  T v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline VF load(const float* p) { return load_any<VF>(p); }
static inline void store(float* p, VF v) { memcpy(p, &v, sizeof v); }
static inline VI load(const int32_t* p) { return load_any<VI>(p); }
static inline void store(int32_t* p, VI v) { memcpy(p, &v, sizeof v); }
static inline VI load_bytes(const void* p) { return load_any<VI>(p); }
static inline VF set(float v) { return VF{v, v, v, v}; }
static inline VI seti(int32_t v) { return VI{v, v, v, v}; }
static inline VF fma(VF a, VF b, VF c) { return a * b + c; }
static inline VF vmax(VF a, VF b) { return a > b ? a : b; }
static inline VF vmin(VF a, VF b) { return a < b ? a : b; }
static inline VI vmaxi(VI a, VI b) { return a > b ? a : b; }
static inline VI vmini(VI a, VI b) { return a < b ? a : b; }
static inline VI addi(VI a, VI b) { return a + b; }
static inline VI subi(VI a, VI b) { return a - b; }
static inline VI andi(VI a, VI b) { return a & b; }
static inline VI shift_left(VI a, int n) { return a << n; }
static inline VI to_int(VF v) {
  VI r;
  for (int i = 0; i < VL; i++) r[i] = (int32_t)__builtin_rintf(v[i]);
  return r;
}
static inline VF to_float(VI v) { return __builtin_convertvector(v, VF); }
static inline VI bits(VF v) { return (VI)v; }
static inline VF floats(VI v) { return (VF)v; }
static inline void store_int8(int8_t* p, VI v) {
  for (int i = 0; i < VL; i++) p[i] = (int8_t)(v[i] < -128 ? -128 : v[i] > 127 ? 127 : v[i]);
}
static inline void prefetch(const void* p) { __builtin_prefetch(p); }
constexpr int kOffset = 0;
static inline VI dot4(VI acc, VI w, VI a) {
  VI value = w ^ (int32_t)0x80808080;
  for (int shift = 24; shift >= 0; shift -= 8)
    acc += ((value << shift) >> 24) * ((a << shift) >> 24);
  return acc;
}
#endif

#if CM_LEVEL < 2
static inline VF reciprocal(VF v) { return set(1.f) / v; }
static inline float sum(VF v) {
  float all[VL], total = 0;
  store(all, v);
  for (int i = 0; i < VL; i++) total += all[i];
  return total;
}
static inline float largest(VF v) {
  float all[VL], most;
  store(all, v);
  most = all[0];
  for (int i = 1; i < VL; i++) most = all[i] > most ? all[i] : most;
  return most;
}
static inline int32_t sumi(VI v) {
  int32_t all[VL], total = 0;
  store(all, v);
  for (int i = 0; i < VL; i++) total += all[i];
  return total;
}
static inline int32_t largesti(VI v) {
  int32_t all[VL], most;
  store(all, v);
  most = all[0];
  for (int i = 1; i < VL; i++) most = imax(most, all[i]);
  return most;
}
#endif

// `value` where `score` is not below `limit` (NaN is not), else 0.
static inline VF zero_below(VF value, VF score, VF limit) {
#if CM_LEVEL >= 2
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(score, limit, _CMP_NLT_UQ), value);
#elif CM_LEVEL == 1
  return _mm256_and_ps(value, _mm256_cmp_ps(score, limit, _CMP_NLT_UQ));
#else
  return floats(andi(bits(value), ~(VI)(score < limit)));
#endif
}

// Pairs of bfloat16 in one register: the even and the odd ones as floats.
static inline VF even_bf16(VI pairs) { return floats(shift_left(pairs, 16)); }
static inline VF odd_bf16(VI pairs) { return floats(andi(pairs, seti((int32_t)0xffff0000))); }

#if CM_LEVEL == 3
// To nearest, ties to even, as a float; NaN stays NaN.
static inline VF round_to_bf16(VF v) {
  VI u = bits(v);
  VI odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), seti(1));
  VI rounded = andi(addi(addi(u, seti(0x7fff)), odd), seti((int32_t)0xffff0000));
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return floats(_mm512_mask_mov_epi32(rounded, nan, seti(0x7fc00000)));
}
static inline void store_bf16(uint16_t* p, VF v) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits(v), 16)));
}
#endif

static inline uint16_t to_bf16(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
static inline float from_bf16(uint16_t v) {
  uint32_t u = (uint32_t)v << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static inline int32_t load_word(const void* p) {
  int32_t v;
  memcpy(&v, p, 4);
  return v;
}

// e^x within 2 ulp for x in [-87, 88], and the ends of that range beyond it; NaN stays NaN.
// Range reduction and polynomial as in Cephes' expf.
static inline VF exponential(VF x) {
  x = vmin(set(88.f), vmax(set(-87.f), x));
  VI n = to_int(x * set(1.44269504f));
  VF nf = to_float(n);
  VF r = fma(nf, set(-0.693359375f), x);
  r = fma(nf, set(2.12194440e-4f), r);
  VF p = set(1.9875691e-4f);
  p = fma(p, r, set(1.3981999e-3f));
  p = fma(p, r, set(8.3334519e-3f));
  p = fma(p, r, set(4.1665796e-2f));
  p = fma(p, r, set(1.6666665e-1f));
  p = fma(p, r, set(0.5f));
  p = fma(p * r, r, r + set(1.f));
  return p * floats(shift_left(addi(n, seti(127)), 23));
}

}  // namespace CM_NAMESPACE
}  // namespace cm
