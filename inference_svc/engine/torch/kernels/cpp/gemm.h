// Projections: rows of activations times a packed matrix.
//
// Every output is summed over the inputs in ascending order in one chain of its own, whatever the
// number of rows or panels in a tile: that is what makes the result of a row independent of its
// neighbours. int8 sums are integers and exact in any order. A tile leaves its sums in a small
// buffer in L1; `finish` turns them into outputs.
#pragma once
#include "amx.h"

namespace cm {
namespace CM_NAMESPACE {

enum Finish { kStore, kAdd, kSwiglu };

struct Target {
  Finish how;
  float* out;  // [rows, pitch]
  int pitch;
};

constexpr int PV = kPanel / VL;                  // vectors of one panel row
constexpr int kHalf = 16;                        // outputs of half a panel
constexpr int kTileRowsMax = CM_LEVEL >= 2 ? 6 : CM_LEVEL == 1 ? 2 : 2;
constexpr int kAmxRowsMin = 3;  // fewer rows of int8 are as fast in vector registers
constexpr int kTilePanels = CM_LEVEL >= 2 ? 2 : 1;

// Where vector v of row `row` in a group of 2 KiB starts (see Matrix).
static inline size_t group_offset(int v, int row) {
  return (size_t)(v * VL / kHalf) * 1024 + (size_t)row * 64 + (size_t)(v * VL % kHalf) * 4;
}

static inline void store_vector(float* out, VF v) { store(out, v); }
static inline void store_vector(int32_t* out, VI v) { store(out, v); }

template <int MR, int NP, class V, class T>
static inline void store_tile(V (&acc)[MR][NP * PV], T* out) {
  for (int r = 0; r < MR; r++)
    for (int v = 0; v < NP * PV; v++) store_vector(out + (r * NP * PV + v) * VL, acc[r][v]);
}

template <int MR, int NP>
static inline void tile_f32(const Rows& a, int row, const Matrix& m, int panel, float* out) {
  VF acc[MR][NP * PV];
  for (int r = 0; r < MR; r++)
    for (int v = 0; v < NP * PV; v++) acc[r][v] = set(0.f);
  const float* x = a.f32 + (size_t)row * a.pitch;
  const float* w = (const float*)(m.data + (size_t)panel * m.panel_bytes);
  for (int k = 0; k < m.padded_inputs; k++) {
    VF weight[NP * PV];
    for (int v = 0; v < NP * PV; v++)
      weight[v] = load(w + (size_t)(v / PV) * (m.panel_bytes / 4) + k * kPanel + v % PV * VL);
    for (int r = 0; r < MR; r++) {
      VF value = set(x[(size_t)r * a.pitch + k]);
      for (int v = 0; v < NP * PV; v++) acc[r][v] = fma(value, weight[v], acc[r][v]);
    }
  }
  store_tile<MR, NP>(acc, out);
}

template <int MR, int NP>
static inline void tile_bf16(const Rows& a, int row, const Matrix& m, int panel, float* out) {
  VF acc[MR][NP * PV];
  for (int r = 0; r < MR; r++)
    for (int v = 0; v < NP * PV; v++) acc[r][v] = set(0.f);
  const float* x = a.f32 + (size_t)row * a.pitch;
  const uint8_t* w = m.data + (size_t)panel * m.panel_bytes;
  for (int k = 0; k < m.padded_inputs; k += 32, w += 2048)
    for (int pair = 0; pair < 16; pair++) {
      VI weight[NP * PV];
      for (int v = 0; v < NP * PV; v++)
        weight[v] = load_bytes(w + (size_t)(v / PV) * m.panel_bytes + group_offset(v % PV, pair));
      for (int r = 0; r < MR; r++) {
        VF even = set(x[(size_t)r * a.pitch + k + 2 * pair]);
        for (int v = 0; v < NP * PV; v++) acc[r][v] = fma(even, even_bf16(weight[v]), acc[r][v]);
      }
      for (int r = 0; r < MR; r++) {
        VF odd = set(x[(size_t)r * a.pitch + k + 2 * pair + 1]);
        for (int v = 0; v < NP * PV; v++) acc[r][v] = fma(odd, odd_bf16(weight[v]), acc[r][v]);
      }
    }
  store_tile<MR, NP>(acc, out);
}

template <int MR, int NP>
static inline void tile_int8(const Rows& a, int row, const Matrix& m, int panel, int32_t* out) {
  VI acc[MR][NP * PV];
  for (int r = 0; r < MR; r++)
    for (int v = 0; v < NP * PV; v++) acc[r][v] = seti(0);
  const int8_t* x = a.int8 + (size_t)row * a.operand_pitch;
  const uint8_t* w = m.data + (size_t)panel * m.panel_bytes;
  for (int k = 0; k < m.padded_inputs; k += 64, w += 2048)
    for (int quad = 0; quad < 16; quad++) {
      VI weight[NP * PV];
      for (int v = 0; v < NP * PV; v++)
        weight[v] = load_bytes(w + (size_t)(v / PV) * m.panel_bytes + group_offset(v % PV, quad));
      for (int r = 0; r < MR; r++) {
        VI value = seti(load_word(x + (size_t)r * a.operand_pitch + k + 4 * quad));
        for (int v = 0; v < NP * PV; v++) acc[r][v] = dot4(acc[r][v], weight[v], value);
      }
    }
  store_tile<MR, NP>(acc, out);
}

// One vector of sums as numbers. `offset` and `factor` are of the row, int8 only.
template <bool BIAS>
static inline VF number(const Matrix& m, VI, VF, int channel, const float* sums) {
  VF y = load(sums);
  return BIAS ? y + load(m.bias + channel) : y;
}
template <bool BIAS>
static inline VF number(const Matrix& m, VI offset, VF factor, int channel, const int32_t* sums) {
  VF y = to_float(subi(load(sums), offset)) * load(m.scale + channel) * factor;
  return BIAS ? y + load(m.bias + channel) : y;
}

template <Finish HOW, bool BIAS, class T>
static inline void finish_as(const Matrix& m, const Rows& a, int row, int rows, int panel,
                             const T* sums, int stride, const Target& t) {
  int channel = panel * kPanel;
  for (int r = 0; r < rows; r++, sums += stride) {
    float* out = t.out + (size_t)(row + r) * t.pitch;
    VI offset = seti(0);
    VF factor = set(1.f);
    if (m.kind == kInt8) {
      offset = seti(kOffset * a.sum[row + r]);
      factor = set(a.scale[row + r]);
    }
    if (HOW == kSwiglu) {  // gate in the first half of the panel, up in the second
      for (int v = 0; v < kHalf; v += VL) {
        VF gate = number<BIAS>(m, offset, factor, channel + v, sums + v);
        VF up = number<BIAS>(m, offset, factor, channel + kHalf + v, sums + kHalf + v);
        VF silu = gate * reciprocal(set(1.f) + exponential(set(0.f) - gate));
        store(out + panel * kHalf + v, silu * up);
      }
    } else {
      for (int v = 0; v < kPanel; v += VL) {
        VF y = number<BIAS>(m, offset, factor, channel + v, sums + v);
        if (HOW == kAdd) y = load(out + channel + v) + y;
        store(out + channel + v, y);
      }
    }
  }
}

// Writes one panel of `rows` rows; `stride` is the distance of rows in `sums`.
template <class T>
static inline void finish(const Matrix& m, const Rows& a, int row, int rows, int panel,
                          const T* sums, int stride, const Target& t) {
  if (m.bias) {
    if (t.how == kStore) finish_as<kStore, true>(m, a, row, rows, panel, sums, stride, t);
    if (t.how == kAdd) finish_as<kAdd, true>(m, a, row, rows, panel, sums, stride, t);
    if (t.how == kSwiglu) finish_as<kSwiglu, true>(m, a, row, rows, panel, sums, stride, t);
  } else {
    if (t.how == kStore) finish_as<kStore, false>(m, a, row, rows, panel, sums, stride, t);
    if (t.how == kAdd) finish_as<kAdd, false>(m, a, row, rows, panel, sums, stride, t);
    if (t.how == kSwiglu) finish_as<kSwiglu, false>(m, a, row, rows, panel, sums, stride, t);
  }
}

template <int MR, int NP>
static inline void run_tile(const Rows& a, int row, const Matrix& m, int panel, const Target& t) {
  alignas(64) float sums[MR * NP * kPanel];
  int32_t* integers = (int32_t*)sums;
  if (m.kind == kF32) tile_f32<MR, NP>(a, row, m, panel, sums);
  if (m.kind == kBf16) tile_bf16<MR, NP>(a, row, m, panel, sums);
  if (m.kind == kInt8) tile_int8<MR, NP>(a, row, m, panel, integers);
  for (int p = 0; p < NP; p++) {
    if (m.kind == kInt8)
      finish(m, a, row, MR, panel + p, integers + p * kPanel, NP * kPanel, t);
    else
      finish(m, a, row, MR, panel + p, sums + p * kPanel, NP * kPanel, t);
  }
}

template <int MR, int NP>
static inline void run_rows(int rows, const Rows& a, int row, const Matrix& m, int panel,
                            const Target& t) {
  if (rows == MR) return run_tile<MR, NP>(a, row, m, panel, t);
  if constexpr (MR > 1) run_rows<MR - 1, NP>(rows, a, row, m, panel, t);
}

#if CM_LEVEL == 3
template <bool TALL>
static inline void run_amx(const Matrix& m, const Rows& a, int row, int rows, int panel,
                           const Target& t) {
  alignas(64) float sums[32 * kPanel];
  if (m.kind == kInt8) {
    amx_int8<TALL>(a, row, m, panel, (int32_t*)sums);
    finish(m, a, row, rows, panel, (int32_t*)sums, kPanel, t);
  } else {
    amx_bf16<TALL>(a, row, m, panel, sums);
    finish(m, a, row, rows, panel, sums, kPanel, t);
  }
}

// Panels are taken in blocks that stay in L2 while all rows pass over them.
static void project_amx(const Matrix& m, const Rows& a, int row_begin, int row_end,
                        int panel_begin, int panel_end, const Target& t) {
  int block = imax(1, (int)((512 << 10) / m.panel_bytes));
  for (int first = panel_begin; first < panel_end; first += block) {
    int last = imin(first + block, panel_end);
    for (int row = row_begin; row < row_end; row += 32) {
      int rows = imin(32, row_end - row);
      for (int panel = first; panel < last; panel++)
        if (rows > 16)
          run_amx<true>(m, a, row, rows, panel, t);
        else
          run_amx<false>(m, a, row, rows, panel, t);
    }
  }
}
#endif

// out[row_begin:row_end, the panels' channels] = a W^T, finished as `t` says.
static void project(const Matrix& m, const Rows& a, int row_begin, int row_end, int panel_begin,
                    int panel_end, const Target& t) {
  int count = row_end - row_begin;
#if CM_LEVEL == 3
  if (m.kind == kBf16 || (m.kind == kInt8 && count >= kAmxRowsMin))
    return project_amx(m, a, row_begin, row_end, panel_begin, panel_end, t);
#endif
  int tiles = (count + kTileRowsMax - 1) / kTileRowsMax;
  for (int panel = panel_begin; panel < panel_end;) {
    int panels = imin(kTilePanels, panel_end - panel);
    for (int i = 0; i < tiles; i++) {  // of even sizes: 4 + 4 rows rather than 6 + 2
      int row = row_begin + count * i / tiles, rows = row_begin + count * (i + 1) / tiles - row;
      if (panels == kTilePanels)
        run_rows<kTileRowsMax, kTilePanels>(rows, a, row, m, panel, t);
      else
        run_rows<kTileRowsMax, 1>(rows, a, row, m, panel, t);
    }
    panel += panels;
  }
}

}  // namespace CM_NAMESPACE
}  // namespace cm
