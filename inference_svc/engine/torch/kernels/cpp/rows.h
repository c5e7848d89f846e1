// What happens to single rows between projections: embedding, norms, quantisation, rotation, and the
// KV cache's write.
#pragma once
#include "simd.h"

namespace cm {
namespace CM_NAMESPACE {

// The largest |x| of n values (n a multiple of 16), NaN if any is NaN: compared as bits, where NaN
// is above infinity, because comparing as floats would lose it.
static inline float largest_magnitude(const float* x, int n) {
  VI most = seti(0);
  for (int i = 0; i < n; i += VL) most = vmaxi(most, andi(bits(load(x + i)), seti(0x7fffffff)));
  int32_t pattern = largesti(most);
  float value;
  memcpy(&value, &pattern, 4);
  return value;
}

// x = q * scale, symmetric, rounded to nearest even. Returns the scale; `sum` gets the sum of q.
// A row with NaN has the scale NaN, so that it spoils what is computed from it.
static inline float quantise(const float* x, int n, int8_t* q, int32_t* total) {
  float most = largest_magnitude(x, n);
  VF inverse = set(most > 0 ? 127.f / most : 0.f);
  VI all = seti(0);
  for (int i = 0; i < n; i += VL) {
    VI v = to_int(load(x + i) * inverse);
    store_int8(q + i, v);
    all = addi(all, v);
  }
  *total = sumi(all);
  return most / 127.f;
}

// As `quantise` to 15 bits: x = (high * 256 + low) / (256 * inverse), where `inverse` is 127 / the
// largest magnitude; `total` gets the sum of high * 256 + low.
static inline void split_int8(const float* x, int n, float inverse, int8_t* high, int8_t* low,
                              int32_t* total) {
  VF factor = set(inverse);
  VI all = seti(0);
  for (int i = 0; i < n; i += VL) {
    VF scaled = load(x + i) * factor;
    VI h = to_int(scaled);
    VI l = vmini(to_int((scaled - to_float(h)) * set(256.f)), seti(127));
    store_int8(high + i, h);
    store_int8(low + i, l);
    all = addi(all, addi(shift_left(h, 8), l));
  }
  *total = sumi(all);
}

// Root-mean-square norm (Zhang and Sennrich, 2019) of n numbers, padded with zeros.
static inline void rms_norm(const float* x, const float* weight, float* out, int n, int padded,
                            float eps) {
  VF squares[4] = {set(0.f), set(0.f), set(0.f), set(0.f)};  // four chains: latency counts here
  int at = 0;
  for (; at + 4 * VL <= padded; at += 4 * VL)
    for (int j = 0; j < 4; j++) {
      VF value = load(x + at + j * VL);
      squares[j] = fma(value, value, squares[j]);
    }
  for (; at < padded; at += VL) squares[0] = fma(load(x + at), load(x + at), squares[0]);
  float total = sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
  VF factor = set(1.f / __builtin_sqrtf(total / (float)n + eps));
  for (int i = 0; i < padded; i += VL) store(out + i, load(x + i) * factor * load(weight + i));
}

static inline void embed(const Model& m, int token, float* x, int pitch) {
  int n = m.config.hidden;
  size_t at = (size_t)token * n;
  for (int i = 0; i < n; i++)
    x[i] = m.config.embedding_kind == kF32 ? ((const float*)m.embedding)[at + i]
                                           : from_bf16(((const uint16_t*)m.embedding)[at + i]);
  memset(x + n, 0, (pitch - n) * sizeof(float));
}

// Puts row `row` of `source` into the form in which a matrix of this kind reads it.
static inline void prepare(Kind kind, const float* source, Rows& a, int row) {
  const float* x = source + (size_t)row * a.pitch;
  size_t at = (size_t)row * a.operand_pitch;
  if (kind == kInt8) a.scale[row] = quantise(x, a.pitch, a.int8 + at, a.sum + row);
#if CM_LEVEL == 3
  if (kind == kBf16) {
    for (int i = 0; i < a.pitch; i += VL) {
      VF value = load(x + i), high = round_to_bf16(value);
      store_bf16(a.high + at + i, high);
      store_bf16(a.low + at + i, round_to_bf16(value - high));
    }
  }
#endif
}

// Rotary position embedding (Su et al., 2021), dimension i paired with i + head_dim / 2.
static inline void rotate(float* x, const float* cosines, const float* sines, int half) {
  int i = 0;
  for (; i + VL <= half; i += VL) {
    VF a = load(x + i), b = load(x + half + i), cosine = load(cosines + i), sine = load(sines + i);
    store(x + i, a * cosine - b * sine);
    store(x + half + i, b * cosine + a * sine);
  }
  for (; i < half; i++) {
    float a = x[i], b = x[half + i];
    x[i] = a * cosines[i] - b * sines[i];
    x[half + i] = b * cosines[i] + a * sines[i];
  }
}

// Keys and values of one token into its unit, at `offset` in the block; layouts as in model.h.
// Other threads write the neighbouring tokens at the same time: nothing wider than a number is
// written where these lie side by side.
static inline void write_kv(const Config& c, uint8_t* unit, int offset, const float* k,
                            const float* v) {
  int dims = c.head_dim;
  uint8_t *keys = unit, *values = unit + unit_keys_bytes(c);
  if (c.kv_kind == kF32) {
    for (int d = 0; d < dims; d++) ((float*)keys)[d * kBlock + offset] = k[d];
    memcpy((float*)values + (size_t)offset * dims, v, dims * sizeof(float));
  } else if (c.kv_kind == kBf16) {
    uint16_t* lane = (uint16_t*)values + (size_t)(offset / 2) * dims * 2 + offset % 2;
    for (int d = 0; d < dims; d++)
      ((uint16_t*)keys)[d / 2 * 32 + offset * 2 + d % 2] = to_bf16(k[d]);
    for (int d = 0; d < dims; d++) lane[d * 2] = to_bf16(v[d]);
  } else {
    float* scales = (float*)(unit + 2 * unit_keys_bytes(c));
    uint8_t* lane = values + (size_t)(offset / 4) * dims * 4 + offset % 4;
    int8_t q[kHeadDimMax];
    int32_t unused;
    scales[offset] = quantise(k, dims, q, &unused);
    for (int d = 0; d < dims; d += 4) {
      int32_t word = load_word(q + d) ^ (int32_t)0x80808080;
      memcpy(keys + d * kBlock + offset * 4, &word, 4);
    }
    scales[kBlock + offset] = quantise(v, dims, q, &unused);
    for (int d = 0; d < dims; d++) lane[d * 4] = (uint8_t)(q[d] ^ 0x80);
  }
}

// Norms and rotates the query and key heads of one row, in place, and writes its KV cache.
static __attribute__((noinline)) void place_row(Model& m, int layer, int row) {
  const Config& c = m.config;
  const Layer& l = m.layers[layer];
  const Step& s = *m.step;
  int chunk = m.scratch.row_chunk[row], half = c.head_dim / 2;
  int position = s.chunk_begins[chunk] + row - s.chunk_starts[chunk];
  int block = s.block_tables[(size_t)chunk * s.table_width + position / kBlock];
  const float* cosines = m.cosines + (size_t)position * half;
  const float* sines = m.sines + (size_t)position * half;
  float* x = m.scratch.qkv + (size_t)row * round_up(q_width(c) + 2 * kv_width(c), kPad);
  for (int head = 0; head < c.heads + c.kv_heads; head++) {
    float* vector = x + head * c.head_dim;
    const float* weight = head < c.heads ? l.query_norm : l.key_norm;
    if (weight) rms_norm(vector, weight, vector, c.head_dim, c.head_dim, c.norm_eps);
    rotate(vector, cosines, sines, half);
  }
  const float *keys = x + q_width(c), *values = keys + kv_width(c);
  for (int head = 0; head < c.kv_heads; head++)
    write_kv(c, unit_at(m, layer, block, head), position % kBlock, keys + head * c.head_dim,
             values + head * c.head_dim);
}

}  // namespace CM_NAMESPACE
}  // namespace cm
