// Checkpoint matrices into panels (see Matrix). Values are copied or moved, never changed.
#pragma once
#include "simd.h"

namespace cm {
namespace CM_NAMESPACE {

// The place of a checkpoint row among the packed channels. gate_up interleaves 16 rows of gate with
// the same 16 of up, so that one panel holds both.
static inline int packed_channel(const Matrix& m, int row, int gate_up) {
  if (!gate_up) return row;
  int half = m.outputs / 2, up = row >= half, channel = row - up * half;
  return channel / 16 * kPanel + up * 16 + channel % 16;
}

static void pack(const Matrix& m, const void* values, int begin, int end, int gate_up) {
  size_t bytes = kind_bytes(m.kind);
  for (int row = begin; row < end; row++) {
    const uint8_t* source = (const uint8_t*)values + (size_t)row * m.inputs * bytes;
    int channel = packed_channel(m, row, gate_up);
    uint8_t* panel = m.data + (size_t)(channel / kPanel) * m.panel_bytes;
    int lane = channel % kPanel;
    if (m.kind == kF32) {
      for (int k = 0; k < m.inputs; k++)
        memcpy(panel + ((size_t)k * kPanel + lane) * 4, source + (size_t)k * 4, 4);
      continue;
    }
    // Words of four bytes, 64 bytes apart; the last may be in part beyond the inputs.
    uint8_t* base = panel + lane / 16 * 1024 + lane % 16 * 4;
    int word_count = (int)(m.inputs * bytes / 4), rest = (int)(m.inputs * bytes % 4);
    for (int i = 0; i <= word_count; i++) {
      uint32_t word = 0;
      if (i == word_count && rest == 0) break;
      memcpy(&word, source + (size_t)i * 4, i < word_count ? 4 : rest);
      if (m.kind == kInt8) word ^= 0x80808080u;
      memcpy(base + (size_t)(i / 16) * 2048 + i % 16 * 64, &word, 4);
    }
  }
}

}  // namespace CM_NAMESPACE
}  // namespace cm
