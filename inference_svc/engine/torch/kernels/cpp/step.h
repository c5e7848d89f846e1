// One engine step as each thread runs it.
//
// Many rows: every thread takes rows of its own through all projections and waits only around
// attention. Few rows: every thread takes output channels of its own, and all wait after each stage.
// Which thread computes an element never changes how it is computed.
#pragma once
#include "attention.h"
#include "gemm.h"
#include "pool.h"

namespace cm {
namespace CM_NAMESPACE {

// Rows for each thread from which on rows are divided rather than channels.
constexpr int kRowsEach = 48;
constexpr int kRowBlock = 512;  // rows that go through all projections together
constexpr int kRowUnit = 32;  // rows are divided in multiples of the largest tile

struct Worker {
  Model& m;
  int thread, threads, rows;
  bool by_rows;
  int begin, end;  // this thread's rows
  TileScratch& tile;

  void barrier() const {
    if (threads > 1) pool_barrier(m.pool);
  }
  void barrier_by_channels() const {
    if (!by_rows) barrier();
  }

  // The projection of `source` (all rows, already prepared); barriers around it are the caller's.
  void run(const Matrix& matrix, const float* source, const Target& target, int count) const {
    Rows a = m.scratch.operand;
    a.f32 = source;
    a.pitch = matrix.padded_inputs;
    int units = (matrix.panels + kTilePanels - 1) / kTilePanels;
    int from = (int)((int64_t)units * thread / threads) * kTilePanels;
    int to = imin((int)((int64_t)units * (thread + 1) / threads) * kTilePanels, matrix.panels);
    if (by_rows)
      project(matrix, a, begin, end, 0, matrix.panels, target);
    else
      project(matrix, a, 0, count, from, to, target);
  }

  void prepare_row(const Matrix& matrix, const float* source, int row) const {
    Rows a = m.scratch.operand;
    a.pitch = matrix.padded_inputs;
    prepare(matrix.kind, source, a, row);
  }

  void norm_row(const float* weight, const Matrix& matrix, int from, int to) const {
    int pitch = matrix.padded_inputs;
    rms_norm(m.scratch.x + (size_t)from * pitch, weight, m.scratch.normed + (size_t)to * pitch,
             m.config.hidden, pitch, m.config.norm_eps);
    prepare_row(matrix, m.scratch.normed, to);
  }

  void attention(int layer) const {
    for (;;) {
      // The longest tiles of a chunk are its last: they go first.
      int item = m.items - 1 - __atomic_fetch_add(&m.next_item[layer % 2], 1, __ATOMIC_RELAXED);
      if (item < 0) break;
      attend_item(m, layer, item, tile);
    }
  }

  int qkv_pitch() const {
    return (int)round_up(q_width(m.config) + 2 * kv_width(m.config), kPad);
  }

  void before_attention(int index) const {
    const Layer& l = m.layers[index];
    for (int r = begin; r < end; r++) norm_row(l.attention_norm, l.qkv, r, r);
    barrier_by_channels();
    run(l.qkv, m.scratch.normed, {kStore, m.scratch.qkv, qkv_pitch()}, rows);
    barrier_by_channels();
    for (int r = begin; r < end; r++) place_row(m, index, r);
  }

  void after_attention(int index) const {
    const Layer& l = m.layers[index];
    const Scratch& s = m.scratch;
    int hidden = l.qkv.padded_inputs;
    for (int r = begin; r < end; r++) {
      if (m.splits > 1) join_splits(m, r);
      prepare_row(l.out, s.mixed, r);
    }
    barrier_by_channels();
    run(l.out, s.mixed, {kAdd, s.x, hidden}, rows);
    barrier_by_channels();
    for (int r = begin; r < end; r++) norm_row(l.mlp_norm, l.gate_up, r, r);
    barrier_by_channels();
    run(l.gate_up, s.normed, {kSwiglu, s.inner, l.down.padded_inputs}, rows);
    barrier_by_channels();
    for (int r = begin; r < end; r++) prepare_row(l.down, s.inner, r);
    barrier_by_channels();
    run(l.down, s.inner, {kAdd, s.x, hidden}, rows);
    barrier_by_channels();
  }

  // Does a stage with this thread's rows: in blocks whose activations stay in L2, or at once.
  template <class Stage>
  void in_blocks(Stage stage) const {
    if (!by_rows) return stage(*this);
    Worker part = *this;
    for (part.begin = begin; part.begin < end; part.begin = part.end) {
      part.end = imin(part.begin + kRowBlock, end);
      stage(part);
    }
  }

  void run_layer(int index) const {
    in_blocks([=](const Worker& w) { w.before_attention(index); });
    if (thread == 0) m.next_item[(index + 1) % 2] = 0;
    barrier();
    attention(index);
    barrier();
    in_blocks([=](const Worker& w) { w.after_attention(index); });
  }
};

static bool is_finite(const float* x, int n) {
  VI most = seti(0);
  for (int i = 0; i < n; i += VL) most = vmaxi(most, andi(bits(load(x + i)), seti(0x7fffffff)));
  return largesti(most) < 0x7f800000;
}

// The index of the largest of n values, the first of equals; 0 when none is a number.
static int argmax(const float* x, int n) {
  VF most = set(-__builtin_inff());
  int i = 0;
  for (; i + VL <= n; i += VL) most = vmax(load(x + i), most);
  float best = largest(most);
  for (int j = i; j < n; j++) best = x[j] > best ? x[j] : best;
  for (i = 0; i < n; i++)
    if (x[i] == best) return i;
  return 0;
}

static void run_step(Model& m, int thread, int threads) {
  const Step& step = *m.step;
  Scratch& s = m.scratch;
  int rows = step.rows, pitch = (int)round_up(m.config.hidden, kPad);
  bool by_rows = threads == 1 || rows >= kRowsEach * threads;
  int unit = by_rows && threads > 1 ? kRowUnit : 1, units = (rows + unit - 1) / unit;
  int begin = imin(units * thread / threads * unit, rows);
  int end = imin(units * (thread + 1) / threads * unit, rows);
  Worker w = {m, thread, threads, rows, by_rows, begin, end,
              *(TileScratch*)(s.thread_base + thread * s.thread_bytes)};
  configure_tiles();
  for (int r = begin; r < end; r++) embed(m, step.token_ids[r], s.x + (size_t)r * pitch, pitch);
  for (int layer = 0; layer < m.config.layers; layer++) w.run_layer(layer);
  w.barrier();

  int first = step.chunks * thread / threads, last = step.chunks * (thread + 1) / threads;
  for (int chunk = first; chunk < last; chunk++) {
    bool sound = true;
    for (int r = step.chunk_starts[chunk]; r < step.chunk_starts[chunk + 1]; r++)
      sound = is_finite(s.x + (size_t)r * pitch, pitch) && sound;
    step.sound[chunk] = sound;
  }
  // The output matrix is as large as several layers and reads few rows: by channels.
  w.by_rows = threads == 1;
  w.begin = step.samples * thread / threads;
  w.end = step.samples * (thread + 1) / threads;
  for (int i = w.begin; i < w.end; i++) w.norm_row(m.final_norm, m.head, step.logit_rows[i], i);
  w.barrier();
  int logits_pitch = (int)round_up(m.config.vocabulary, kPanel);
  w.run(m.head, s.normed, {kStore, step.logits, logits_pitch}, step.samples);
  w.barrier();
  for (int i = w.begin; i < w.end; i++)
    step.greedy[i] = argmax(step.logits + (size_t)i * logits_pitch, m.config.vocabulary);
  release_tiles();
}

}  // namespace CM_NAMESPACE
}  // namespace cm
