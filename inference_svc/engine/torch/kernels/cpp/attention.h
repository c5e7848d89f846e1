// Paged attention, in place in the KV cache.
//
// An item of work is a tile of up to 16 query rows of one KV head: the heads that share it, of
// consecutive tokens of one chunk; decode is a chunk of one token. Keys are summed in splits of 256
// that begin at multiples of 256 in the sequence, each with a softmax of its own, and the splits
// are merged in order (Dao et al., FlashAttention, 2022). As the cuts do not depend on who computes
// what, the splits of one long sequence can go to different threads and give the same bits.
#pragma once
#include "rows.h"

namespace cm {
namespace CM_NAMESPACE {

struct alignas(64) TileScratch {
  float scores[kTileRows][kSplit];
  float query[kTileRows][kHeadDimMax];
  float part[kTileRows][kHeadDimMax];
  float mixed[kTileRows][kHeadDimMax];
  int8_t query_high[kTileRows][kHeadDimMax], query_low[kTileRows][kHeadDimMax];
  int8_t weight_high[kTileRows][kSplit + 64], weight_low[kTileRows][kSplit + 64];
  uint8_t values[64 * kHeadDimMax];  // of 64 keys, side by side for an AMX tile
  float query_scale[kTileRows], weight_scale[kTileRows];
  int32_t query_sum[kTileRows], weight_sum[kTileRows];
  float peak[kTileRows], total[kTileRows];  // of the split: largest score, sum of weights
};

// A tile: rows [first, first + rows) of the chunk, counted token by token, head by head in a token.
struct Tile {
  int kv_head, first, rows;
  int group;        // query heads that share the KV head
  int begin, row0;  // position and row of the chunk's first token
  int window;
  const int32_t* table;
  int token(int r) const { return (first + r) / group; }
  int row(int r) const { return row0 + token(r); }
  int head(int r) const { return kv_head * group + (first + r) % group; }
  int end(int r) const { return begin + token(r) + 1; }  // keys [start, end) are visible
  int start(int r) const { return window > 0 ? imax(0, end(r) - window) : 0; }
};

static inline float* query_row(const Model& m, const Tile& t, int r) {
  const Config& c = m.config;
  size_t pitch = round_up(q_width(c) + 2 * kv_width(c), kPad);
  return m.scratch.qkv + t.row(r) * pitch + t.head(r) * c.head_dim;
}

static void load_queries(const Model& m, const Tile& t, TileScratch& s) {
  int dims = m.config.head_dim;
  VF factor = set(1.f / __builtin_sqrtf((float)dims));
  for (int r = 0; r < t.rows; r++) {
    const float* q = query_row(m, t, r);
    for (int d = 0; d < dims; d += VL) store(s.query[r] + d, load(q + d) * factor);
    if (m.config.kv_kind == kInt8) {
      float most = largest_magnitude(s.query[r], dims);
      s.query_scale[r] = most / (127.f * 256.f);
      split_int8(s.query[r], dims, most > 0 ? 127.f / most : 0.f, s.query_high[r], s.query_low[r],
                 &s.query_sum[r]);
    }
  }
}

constexpr int kAmxAttentionRowsMin = 4;  // fewer rows leave AMX tiles empty
constexpr float kHidden = -1e30f;        // the score of a key that a row must not see
constexpr int BV = kBlock / VL;          // vectors of one block's keys

// high * 256 + low, of sums that still hold the offset of the unsigned operand. What overflows on
// the way comes back: the result fits.
static inline VF join(VI high, VI low, int32_t total) {
  return to_float(subi(addi(shift_left(high, 8), low), seti((int32_t)(kOffset * (uint32_t)total))));
}

// Scores of MR rows against NB blocks. Even and odd dimensions have a chain each (f32, bf16).
template <int KIND, int MR, int NB>
static inline void score(TileScratch& s, int r0, const uint8_t* const* units, int at, int dims) {
  constexpr int W = KIND == kInt8 ? 4 : 2;  // dimensions of one round
  if constexpr (KIND == kInt8) {
    VI acc[MR][2][NB][BV];
    for (auto& row : acc)
      for (auto& piece : row)
        for (auto& block : piece)
          for (VI& v : block) v = seti(0);
    for (int d = 0; d < dims; d += W)
      for (int b = 0; b < NB; b++)
        for (int v = 0; v < BV; v++) {
          VI keys = load_bytes(units[b] + d / 4 * 64 + v * VL * 4);
          for (int r = 0; r < MR; r++) {
            VI high = seti(load_word(s.query_high[r0 + r] + d));
            VI low = seti(load_word(s.query_low[r0 + r] + d));
            acc[r][0][b][v] = dot4(acc[r][0][b][v], keys, high);
            acc[r][1][b][v] = dot4(acc[r][1][b][v], keys, low);
          }
        }
    for (int r = 0; r < MR; r++)
      for (int b = 0; b < NB; b++)
        for (int v = 0; v < BV; v++) {
          const float* scales = (const float*)(units[b] + 2 * kBlock * dims);
          VF value = join(acc[r][0][b][v], acc[r][1][b][v], s.query_sum[r0 + r]);
          value = value * set(s.query_scale[r0 + r]) * load(scales + v * VL);
          store(s.scores[r0 + r] + at + b * kBlock + v * VL, value);
        }
  } else {
    VF acc[MR][2][NB][BV];
    for (auto& row : acc)
      for (auto& piece : row)
        for (auto& block : piece)
          for (VF& v : block) v = set(0.f);
    for (int d = 0; d < dims; d += W)
      for (int b = 0; b < NB; b++)
        for (int v = 0; v < BV; v++) {
          VF even, odd;
          if constexpr (KIND == kBf16) {
            VI pairs = load_bytes(units[b] + d / 2 * 64 + v * VL * 4);
            even = even_bf16(pairs);
            odd = odd_bf16(pairs);
          } else {
            const float* keys = (const float*)units[b] + d * kBlock + v * VL;
            even = load(keys);
            odd = load(keys + kBlock);
          }
          for (int r = 0; r < MR; r++) {
            acc[r][0][b][v] = fma(set(s.query[r0 + r][d]), even, acc[r][0][b][v]);
            acc[r][1][b][v] = fma(set(s.query[r0 + r][d + 1]), odd, acc[r][1][b][v]);
          }
        }
    for (int r = 0; r < MR; r++)
      for (int b = 0; b < NB; b++)
        for (int v = 0; v < BV; v++)
          store(s.scores[r0 + r] + at + b * kBlock + v * VL, acc[r][0][b][v] + acc[r][1][b][v]);
  }
}

template <int KIND, int MR, int NB>
static inline int score_rows(TileScratch& s, int rows, int r0, const uint8_t* const* units,
                             int blocks, int at, int dims) {
  for (; r0 + MR <= rows; r0 += MR) {
    int b = 0;
    for (; b + NB <= blocks; b += NB)
      score<KIND, MR, NB>(s, r0, units + b, at + b * kBlock, dims);
    for (; b < blocks; b++) score<KIND, MR, 1>(s, r0, units + b, at + b * kBlock, dims);
  }
  return r0;
}

// From scores to weights exp(score - peak), in place; hidden keys get 0. Keys are counted from the
// split's first; [low, high) are those that the tile looks at, in whole blocks. int8: the scales of
// the values go into the weights, and these become integers.
static void soften(const Model& m, const Tile& t, TileScratch& s, int r, int split_begin, int low,
                   int high, const uint8_t* const* units) {
  float* x = s.scores[r];
  bool integers = m.config.kv_kind == kInt8;
  int start = imax(t.start(r) - split_begin, 0), end = imin(t.end(r) - split_begin, high);
  int padded = integers ? high + (64 - (high - low) % 64) % 64 : high;  // whole AMX tiles
  if (end <= start) {
    start = end = low;
    s.total[r] = 0;
  }
  int first = start / kBlock * kBlock, last = (int)round_up(end, kBlock);
  memset(x + low, 0, (first - low) * sizeof(float));
  memset(x + last, 0, (high - last) * sizeof(float));
  if (integers) {
    memset(s.weight_high[r] + low, 0, first - low);
    memset(s.weight_low[r] + low, 0, first - low);
    memset(s.weight_high[r] + last, 0, padded - last);
    memset(s.weight_low[r] + last, 0, padded - last);
    s.weight_sum[r] = 0;
    s.weight_scale[r] = 0;
  }
  if (end == start) return;
  for (int i = first; i < start; i++) x[i] = kHidden;
  for (int i = end; i < last; i++) x[i] = kHidden;
  VF most = set(kHidden);
  for (int i = first; i < last; i += VL) most = vmax(most, load(x + i));
  s.peak[r] = largest(most);
  VF peak = set(s.peak[r]), total = set(0.f);
  VI biggest = seti(0);
  size_t keys = unit_keys_bytes(m.config);
  for (int i = first; i < last; i += kBlock) {
    const float* scales = (const float*)(units[(i - low) / kBlock] + 2 * keys) + kBlock;
    for (int v = 0; v < kBlock; v += VL) {
      VF score = load(x + i + v);
      VF weight = zero_below(exponential(score - peak), score, set(kHidden * 0.5f));
      total = total + weight;
      if (integers) {
        weight = weight * load(scales + v);
        biggest = vmaxi(biggest, andi(bits(weight), seti(0x7fffffff)));
      }
      store(x + i + v, weight);
    }
  }
  s.total[r] = sum(total);
  if (!integers) return;
  int32_t pattern = largesti(biggest);
  float magnitude;
  memcpy(&magnitude, &pattern, 4);
  s.weight_scale[r] = magnitude / (127.f * 256.f);
  split_int8(x + first, last - first, magnitude > 0 ? 127.f / magnitude : 0.f,
             s.weight_high[r] + first, s.weight_low[r] + first, &s.weight_sum[r]);
}

// part[rows r0.., NV vectors of dimensions from n] = weights times values, key after key.
template <int KIND, int MR, int NV>
static inline void mix(TileScratch& s, int r0, int n, const uint8_t* const* units, int blocks,
                       int at, int dims, size_t keys_bytes) {
  if constexpr (KIND == kInt8) {
    VI acc[MR][2][NV];
    for (auto& row : acc)
      for (auto& piece : row)
        for (VI& v : piece) v = seti(0);
    for (int b = 0; b < blocks; b++)
      for (int quad = 0; quad < kBlock / 4; quad++) {
        const uint8_t* base = units[b] + keys_bytes + ((size_t)quad * dims + n) * 4;
        int key = at + b * kBlock + quad * 4;
        for (int v = 0; v < NV; v++) {
          VI values = load_bytes(base + v * VL * 4);
          for (int r = 0; r < MR; r++) {
            VI high = seti(load_word(s.weight_high[r0 + r] + key));
            VI low = seti(load_word(s.weight_low[r0 + r] + key));
            acc[r][0][v] = dot4(acc[r][0][v], values, high);
            acc[r][1][v] = dot4(acc[r][1][v], values, low);
          }
        }
      }
    for (int r = 0; r < MR; r++)
      for (int v = 0; v < NV; v++)
        store(s.part[r0 + r] + n + v * VL, join(acc[r][0][v], acc[r][1][v], s.weight_sum[r0 + r]) *
                                               set(s.weight_scale[r0 + r]));
  } else {
    VF acc[MR][NV];
    for (auto& row : acc)
      for (VF& v : row) v = set(0.f);
    for (int b = 0; b < blocks; b++)
      for (int pair = 0; pair < kBlock / 2; pair++) {
        int key = at + b * kBlock + pair * 2;
        VF even[NV], odd[NV];
        for (int v = 0; v < NV; v++) {
          if constexpr (KIND == kBf16) {
            VI both = load_bytes(units[b] + keys_bytes + ((size_t)pair * dims + n + v * VL) * 4);
            even[v] = even_bf16(both);
            odd[v] = odd_bf16(both);
          } else {
            const float* base = (const float*)(units[b] + keys_bytes);
            even[v] = load(base + (size_t)(2 * pair) * dims + n + v * VL);
            odd[v] = load(base + (size_t)(2 * pair + 1) * dims + n + v * VL);
          }
        }
        for (int r = 0; r < MR; r++) {
          VF first = set(s.scores[r0 + r][key]), second = set(s.scores[r0 + r][key + 1]);
          for (int v = 0; v < NV; v++) acc[r][v] = fma(first, even[v], acc[r][v]);
          for (int v = 0; v < NV; v++) acc[r][v] = fma(second, odd[v], acc[r][v]);
        }
      }
    for (int r = 0; r < MR; r++)
      for (int v = 0; v < NV; v++) store(s.part[r0 + r] + n + v * VL, acc[r][v]);
  }
}

template <int KIND, int MR>
static inline int mix_rows(TileScratch& s, int rows, int r0, const uint8_t* const* units,
                           int blocks, int at, int dims, size_t keys_bytes) {
  constexpr int kWide = CM_LEVEL >= 1 ? 4 : 4, kNarrow = kBlock / VL;
  for (; r0 + MR <= rows; r0 += MR) {
    int n = 0;
    for (; n + kWide * VL <= dims; n += kWide * VL)
      mix<KIND, MR, kWide>(s, r0, n, units, blocks, at, dims, keys_bytes);
    for (; n < dims; n += kNarrow * VL)
      mix<KIND, MR, kNarrow>(s, r0, n, units, blocks, at, dims, keys_bytes);
  }
  return r0;
}

#if CM_LEVEL == 3
// Scores of 16 rows by AMX, for head sizes that fill tiles: one tile of keys is 64 dimensions of a
// block. int8 sums are exact, so that this and `score` give the same bits.
static void score_amx(TileScratch& s, int rows, const uint8_t* const* units, int blocks, int at,
                      int dims) {
  alignas(64) int32_t high[kTileRows * kBlock], low[kTileRows * kBlock];
  for (int b = 0; b < blocks; b++) {
    _tile_zero(0);
    _tile_zero(1);
    for (int d = 0; d < dims; d += 64) {
      _tile_loadd(4, s.query_high[0] + d, kHeadDimMax);
      _tile_loadd(5, s.query_low[0] + d, kHeadDimMax);
      _tile_loadd(6, units[b] + d * kBlock, 64);
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 5, 6);
    }
    _tile_stored(0, high, 64);
    _tile_stored(1, low, 64);
    VF scales = load((const float*)(units[b] + 2 * kBlock * dims));
    for (int r = 0; r < rows; r++) {
      VF value = join(load(high + r * kBlock), load(low + r * kBlock), s.query_sum[r]);
      store(s.scores[r] + at + b * kBlock, value * set(s.query_scale[r]) * scales);
    }
  }
}

// Weights times values by AMX, 64 keys at a time: the values of four blocks are put side by side.
static void mix_amx(TileScratch& s, int rows, const uint8_t* const* units, int blocks, int at,
                    int dims, size_t keys_bytes) {
  alignas(64) int32_t sums[4][kTileRows * 16];
  for (int n = 0; n < dims; n += 32) {  // two tiles of dimensions, high and low: four accumulators
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int b = 0; b < blocks; b += 4) {
      int count = imin(4, blocks - b);
      for (int i = 0; i < count; i++)
        for (int quad = 0; quad < 4; quad++) {
          const uint8_t* source = units[b + i] + keys_bytes + ((size_t)quad * dims + n) * 4;
          uint8_t* target = s.values + (i * 4 + quad) * 128;
          store((int32_t*)target, load_bytes(source));
          store((int32_t*)(target + 64), load_bytes(source + 64));
        }
      int key = at + b * kBlock;
      _tile_loadd(4, s.weight_high[0] + key, kSplit + 64);
      _tile_loadd(5, s.weight_low[0] + key, kSplit + 64);
      _tile_loadd(6, s.values, 128);
      _tile_loadd(7, s.values + 64, 128);
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 5, 6);
      _tile_dpbsud(2, 4, 7);
      _tile_dpbsud(3, 5, 7);
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    for (int r = 0; r < rows; r++)
      for (int half = 0; half < 2; half++) {
        VF value = join(load(sums[2 * half] + r * 16), load(sums[2 * half + 1] + r * 16),
                        s.weight_sum[r]);
        store(s.part[r] + n + half * 16, value * set(s.weight_scale[r]));
      }
  }
}
#endif

// One split of one tile: fills peak, total and part. `split` counts kSplit keys.
template <int KIND>
static void attend_split(const Model& m, int layer, const Tile& t, int split, TileScratch& s) {
  const Config& c = m.config;
  int split_begin = split * kSplit, dims = c.head_dim;
  int first = imax(t.start(0), split_begin) / kBlock;
  int last = (imin(t.end(t.rows - 1), split_begin + kSplit) + kBlock - 1) / kBlock;
  int blocks = last - first, at = first * kBlock - split_begin;
  const uint8_t* units[kSplit / kBlock];
  for (int b = 0; b < blocks; b++) units[b] = unit_at(m, layer, t.table[first + b], t.kv_head);
  // In decode each block is read once, and lies anywhere: no stream for the hardware to follow.
  if (t.rows <= t.group)
    for (int b = 0; b < blocks; b++)
      for (size_t line = 0; line < m.unit_bytes; line += 64) prefetch(units[b] + line);
  constexpr bool wide = CM_LEVEL >= 2;
  int r = 0;
#if CM_LEVEL == 3
  bool tiles = KIND == kInt8 && dims % 64 == 0 && t.rows >= kAmxAttentionRowsMin;
  if (tiles) {
    score_amx(s, t.rows, units, blocks, at, dims);
    for (r = 0; r < t.rows; r++) soften(m, t, s, r, split_begin, at, at + blocks * kBlock, units);
    return mix_amx(s, t.rows, units, blocks, at, dims, unit_keys_bytes(c));
  }
#endif
  if constexpr (KIND == kInt8) {
    r = score_rows<KIND, 2, wide ? 4 : 1>(s, t.rows, r, units, blocks, at, dims);
    r = score_rows<KIND, 1, wide ? 4 : 1>(s, t.rows, r, units, blocks, at, dims);
  } else {
    r = score_rows<KIND, wide ? 8 : 2, 1>(s, t.rows, r, units, blocks, at, dims);
    r = score_rows<KIND, 2, wide ? 2 : 1>(s, t.rows, r, units, blocks, at, dims);
    r = score_rows<KIND, 1, wide ? 4 : 1>(s, t.rows, r, units, blocks, at, dims);
  }
  for (r = 0; r < t.rows; r++) soften(m, t, s, r, split_begin, at, at + blocks * kBlock, units);
  size_t keys_bytes = unit_keys_bytes(c);
  constexpr int most = KIND == kInt8 ? 2 : wide ? 4 : 2;
  r = mix_rows<KIND, most>(s, t.rows, 0, units, blocks, at, dims, keys_bytes);
  if constexpr (most > 2) r = mix_rows<KIND, 2>(s, t.rows, r, units, blocks, at, dims, keys_bytes);
  r = mix_rows<KIND, 1>(s, t.rows, r, units, blocks, at, dims, keys_bytes);
}

static void attend_split(const Model& m, int layer, const Tile& t, int split, TileScratch& s) {
  if (m.config.kv_kind == kF32) attend_split<kF32>(m, layer, t, split, s);
  if (m.config.kv_kind == kBf16) attend_split<kBf16>(m, layer, t, split, s);
  if (m.config.kv_kind == kInt8) attend_split<kInt8>(m, layer, t, split, s);
}

// Adds a split to what the splits before it gave; a split of hidden keys only has total 0.
static inline void merge(float* peak, float* total, float* mixed, float split_peak,
                         float split_total, const float* part, int dims) {
  if (split_total == 0) return;
  if (*total == 0) {
    *peak = split_peak;
    *total = split_total;
    memcpy(mixed, part, dims * sizeof(float));
    return;
  }
  float most = *peak > split_peak ? *peak : split_peak;
  VF old_factor = exponential(set(*peak - most)), new_factor = exponential(set(split_peak - most));
  for (int d = 0; d < dims; d += VL)
    store(mixed + d, fma(load(mixed + d), old_factor, load(part + d) * new_factor));
  *total = *total * largest(old_factor) + split_total * largest(new_factor);
  *peak = most;
}

static inline void write_mixed(const Model& m, int row, int head, const float* mixed, float total) {
  const Config& c = m.config;
  float* out = m.scratch.mixed + (size_t)row * round_up(q_width(c), kPad) + head * c.head_dim;
  VF inverse = set(1.f / total);
  for (int d = 0; d < c.head_dim; d += VL) store(out + d, load(mixed + d) * inverse);
}

// Peak, total and, from the 16th float on, the mixed values of one split of one row and head.
static inline float* partial_at(const Model& m, int row, int head, int split) {
  size_t index = ((size_t)row * m.config.heads + head) * m.splits + split;
  return m.scratch.partials + index * (m.config.head_dim + kBlock);
}

static Tile tile_of(const Model& m, int layer, int index) {
  const Config& c = m.config;
  const Step& step = *m.step;
  int chunk = 0, beyond = step.chunks;  // bisected: the last chunk that begins at or before `index`
  while (beyond - chunk > 1) {
    int middle = (chunk + beyond) / 2;
    (m.scratch.first_item[middle] <= index ? chunk : beyond) = middle;
  }
  index -= m.scratch.first_item[chunk];
  Tile t;
  t.group = c.heads / c.kv_heads;
  t.row0 = step.chunk_starts[chunk];
  t.begin = step.chunk_begins[chunk];
  t.window = m.layers[layer].window;
  t.table = step.block_tables + (size_t)chunk * step.table_width;
  t.kv_head = index % c.kv_heads;
  t.first = index / c.kv_heads * kTileRows;
  t.rows = imin(kTileRows, (step.chunk_starts[chunk + 1] - t.row0) * t.group - t.first);
  return t;
}

// One item: a whole tile, or one split of it when there are too few tiles for the threads.
static void attend_item(const Model& m, int layer, int item, TileScratch& s) {
  int dims = m.config.head_dim;
  Tile t = tile_of(m, layer, item / m.splits);
  int first = t.start(0) / kSplit, last = (t.end(t.rows - 1) - 1) / kSplit;
  load_queries(m, t, s);
  if (m.splits > 1) {
    int split = item % m.splits;
    bool empty = split < first || split > last;
    if (!empty) attend_split(m, layer, t, split, s);
    for (int r = 0; r < t.rows; r++) {
      float* partial = partial_at(m, t.row(r), t.head(r), split);
      partial[0] = empty ? 0 : s.peak[r];
      partial[1] = empty ? 0 : s.total[r];
      if (!empty) memcpy(partial + kBlock, s.part[r], dims * sizeof(float));
    }
    return;
  }
  float peak[kTileRows], total[kTileRows] = {0};
  for (int split = first; split <= last; split++) {
    attend_split(m, layer, t, split, s);
    for (int r = 0; r < t.rows; r++)
      merge(&peak[r], &total[r], s.mixed[r], s.peak[r], s.total[r], s.part[r], dims);
  }
  for (int r = 0; r < t.rows; r++) write_mixed(m, t.row(r), t.head(r), s.mixed[r], total[r]);
}

// After a split step: joins the parts of one row.
static void join_splits(const Model& m, int row) {
  float mixed[kHeadDimMax];
  for (int head = 0; head < m.config.heads; head++) {
    float peak = 0, total = 0;
    for (int split = 0; split < m.splits; split++) {
      const float* partial = partial_at(m, row, head, split);
      merge(&peak, &total, mixed, partial[0], partial[1], partial + kBlock, m.config.head_dim);
    }
    write_mixed(m, row, head, mixed, total);
  }
}

}  // namespace CM_NAMESPACE
}  // namespace cm
