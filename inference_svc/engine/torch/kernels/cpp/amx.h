// Projections on AMX tiles: 32 rows by one panel at a time, in four accumulators of 16 x 16.
//
// int8 sums are exact, so that few rows can take the other path. bfloat16 tiles add in an order of
// their own, so that all rows of bf16 weights take this one; the activations come as two bfloat16
// parts, whose sum has 16 bits of mantissa, and both products go into the same accumulator.
#pragma once
#include "simd.h"

#if CM_LEVEL == 3
namespace cm {
namespace CM_NAMESPACE {

// All eight tiles: 16 rows of 64 bytes.
static inline void configure_tiles() {
  struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } config = {};
  config.palette = 1;
  for (int i = 0; i < 8; i++) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  // GCC 12 takes the instruction to read 8 bytes only and drops the other stores.
  asm volatile("" : : "m"(config));
  _tile_loadconfig(&config);
}
static inline void release_tiles() { _tile_release(); }

template <bool TALL>
static inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  if (TALL) _tile_zero(2);
  if (TALL) _tile_zero(3);
}

// sums[TALL ? 32 : 16][32].
template <bool TALL, class T>
static inline void store_sums(T* sums) {
  _tile_stored(0, sums, 128);
  _tile_stored(1, sums + 16, 128);
  if (TALL) _tile_stored(2, sums + 512, 128);
  if (TALL) _tile_stored(3, sums + 528, 128);
}

// Rows beyond the step's are garbage in, garbage out, and unused.
template <bool TALL>
static inline void amx_int8(const Rows& a, int row, const Matrix& m, int panel, int32_t* sums) {
  size_t pitch = a.operand_pitch;
  const int8_t* x = a.int8 + row * pitch;
  const uint8_t* w = m.data + (size_t)panel * m.panel_bytes;
  zero_sums<TALL>();
  for (int k = 0; k < m.padded_inputs; k += 64, w += 2048) {
    _tile_loadd(6, w, 64);
    _tile_loadd(4, x + k, pitch);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, w + 1024, 64);
    _tile_dpbsud(1, 4, 7);
    if (TALL) {
      _tile_loadd(5, x + 16 * pitch + k, pitch);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  }
  store_sums<TALL>(sums);
}

template <bool TALL>
static inline void amx_bf16(const Rows& a, int row, const Matrix& m, int panel, float* sums) {
  size_t pitch = a.operand_pitch, below = 16 * pitch;
  const uint16_t *high = a.high + row * pitch, *low = a.low + row * pitch;
  const uint8_t* w = m.data + (size_t)panel * m.panel_bytes;
  zero_sums<TALL>();
  for (int k = 0; k < m.padded_inputs; k += 32, w += 2048) {
    _tile_loadd(6, w, 64);
    _tile_loadd(7, w + 1024, 64);
    _tile_loadd(4, high + k, pitch * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, low + k, pitch * 2);
    _tile_dpbf16ps(0, 5, 6);
    _tile_dpbf16ps(1, 5, 7);
    if (TALL) {
      _tile_loadd(4, high + below + k, pitch * 2);
      _tile_dpbf16ps(2, 4, 6);
      _tile_dpbf16ps(3, 4, 7);
      _tile_loadd(5, low + below + k, pitch * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  store_sums<TALL>(sums);
}

}  // namespace CM_NAMESPACE
}  // namespace cm
#else
namespace cm {
namespace CM_NAMESPACE {
static inline void configure_tiles() {}
static inline void release_tiles() {}
}  // namespace CM_NAMESPACE
}  // namespace cm
#endif
