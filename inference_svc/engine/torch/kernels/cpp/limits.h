// What the machine can do at most, for kernels/limits.py: reading memory, and integer products of
// numbers that are in registers already.
#pragma once
#include "amx.h"

namespace cm {
namespace CM_NAMESPACE {

// Reads all bytes (a multiple of 1 KiB) and returns something that depends on them.
static int32_t read_all(const uint8_t* from, size_t bytes) {
  VI sums[8];
  for (VI& v : sums) v = seti(0);
  constexpr size_t kVector = VL * 4;
  for (size_t at = 0; at < bytes; at += 8 * kVector)
    for (int i = 0; i < 8; i++) sums[i] = addi(sums[i], load_bytes(from + at + i * kVector));
  for (int i = 1; i < 8; i++) sums[0] = addi(sums[0], sums[i]);
  return sumi(sums[0]);
}

// Multiplies and adds without memory; returns how many operations (two for each product) it did.
static int64_t multiply(int rounds) {
#if CM_LEVEL == 3
  configure_tiles();
  for (int i = 0; i < rounds; i++) {
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
  release_tiles();
  return (int64_t)rounds * 4 * 2 * 16 * 16 * 64;
#else
  constexpr int kChains = CM_LEVEL == 2 ? 12 : 6;
  VI acc[kChains], w = seti(0x01020304), a = seti(0x04030201);
  for (VI& v : acc) v = seti(0);
  for (int i = 0; i < rounds; i++) {
    for (VI& v : acc) v = dot4(v, w, a);
    asm volatile("" : : : "memory");
  }
  int32_t kept[VL];
  for (int i = 1; i < kChains; i++) acc[0] = addi(acc[0], acc[i]);
  store(kept, acc[0]);
  asm volatile("" : : "m"(kept) : "memory");
  return (int64_t)rounds * kChains * 2 * VL * 4;
#endif
}

}  // namespace CM_NAMESPACE
}  // namespace cm
