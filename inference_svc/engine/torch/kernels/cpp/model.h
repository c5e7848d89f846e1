// What a model is in memory: plain structs, shared by every instruction-set level.
//
// The headers of a level are compiled several times with different flags. So that the linker never
// merges an AVX-512 copy of a function into code that runs on an older CPU, everything here is
// plain data or a static function, and the levels use no standard library templates.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define CM_EXPORT extern "C" __attribute__((visibility("default")))

namespace cm {

enum Kind : int32_t { kF32 = 0, kBf16 = 1, kInt8 = 2 };
enum Level : int32_t { kGeneric = 0, kAvx2 = 1, kAvx512 = 2, kAmx = 3 };

constexpr int kBlock = 16;    // tokens of one KV block
constexpr int kPanel = 32;    // output channels of one panel of a packed matrix
constexpr int kSplit = 256;   // keys over which attention is summed before partial results meet
constexpr int kTileRows = 16; // query rows that attention handles together
constexpr int kPad = 64;      // rows of activations are padded with zeros to a multiple of this
constexpr int kHeadDimMax = 256;
constexpr size_t kThreadScratchBytes = 160 << 10;  // holds a TileScratch

static inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A packed projection, y = x W^T + bias. `data` is cut into panels of 32 output channels. In a
// panel, the inputs come in groups of what fits 2 KiB: 64 (int8) or 32 (bf16), each as [2 halves]
// [16 rows] of 64 bytes; a row holds, for 16 channels, 4 (int8) or 2 (bf16) consecutive inputs. That
// is the operand layout of VNNI and of AMX tiles alike. f32 panels are [inputs][32].
// int8 values are stored with 128 added: the unsigned operand of the dot-product instructions.
struct Matrix {
  Kind kind;
  int32_t outputs, inputs;  // as in the checkpoint (gate_up: both halves, without padding)
  int32_t panels;           // of kPanel outputs
  int32_t padded_inputs;    // a multiple of 64
  size_t panel_bytes;
  uint8_t* data;
  float* scale;  // [panels * 32], int8 only
  float* bias;   // [panels * 32] or null
};

struct Layer {
  Matrix qkv, out, gate_up, down;
  float *attention_norm, *mlp_norm;  // [padded hidden]
  float *query_norm, *key_norm;      // [head_dim] or null
  int32_t window;                    // newest positions that a token sees; 0: all
};

struct Config {  // mirrored by library.py
  int32_t vocabulary, hidden, intermediate, layers, heads, kv_heads, head_dim;
  int32_t embedding_kind, kv_kind, threads, level;
  float norm_eps;
};

// One row is one token; see the class Step in backend.py, of which these are the arrays.
struct Step {  // mirrored by library.py
  int32_t rows, chunks, table_width, samples;
  const int32_t *token_ids, *chunk_starts, *chunk_begins, *block_tables, *logit_rows;
  float* logits;  // [samples, round_up(vocabulary, 32)]
  int32_t* greedy;
  uint8_t* sound;  // [chunks]
};

// The rows of activations that a projection reads, in the form its kind and level wants.
struct Rows {
  const float* f32;      // [rows, pitch]
  int8_t* int8;          // [rows, operand_pitch]; x = int8 * scale
  float* scale;          // [rows]
  int32_t* sum;          // [rows]; sum of int8
  uint16_t *high, *low;  // [rows, operand_pitch]; x = high + low as bfloat16, for AMX
  int32_t pitch;
  int32_t operand_pitch;  // of the widest projection: threads may be at different ones
};

struct Scratch {  // of one step; grows, never shrinks
  int32_t rows_max, samples_max;
  float *x, *normed, *qkv, *mixed, *inner;  // [rows, pitch of each]
  Rows operand;                             // the quantised or split rows of the current projection
  int32_t* row_chunk;                       // [rows]
  int32_t* first_item;                      // [chunks + 1]; attention items before each chunk
  float* partials;                          // attention results of key splits, when split
  size_t partial_floats;
  uint8_t* thread_base;                     // kThreadScratchBytes for each thread
  size_t thread_bytes;
};

struct Pool;

struct Model {
  Config config;
  Layer* layers;
  Matrix head;
  void* embedding;    // [vocabulary, hidden], f32 or bf16
  float* final_norm;  // [padded hidden]
  const float *cosines, *sines;  // [rotations, head_dim / 2]
  int32_t rotations;
  uint8_t* cache;     // [layers][kv_heads][blocks][unit_bytes]
  int32_t blocks;
  size_t unit_bytes;  // keys, values and scales of 16 tokens for one KV head
  Scratch scratch;
  Pool* pool;
  // state of the running step
  const Step* step;
  int32_t next_item[2];  // attention items are claimed by counting; layers take turns
  int32_t items, splits;  // splits: over keys, 1 when there are items enough for all threads
};

static inline int q_width(const Config& c) { return c.heads * c.head_dim; }
static inline int kv_width(const Config& c) { return c.kv_heads * c.head_dim; }
static inline size_t kind_bytes(int kind) { return kind == kF32 ? 4 : kind == kBf16 ? 2 : 1; }

// One KV unit: keys, values, and for int8 the scales of 16 keys and of 16 values.
// Keys are transposed: 16 tokens side by side for each dimension (f32), pair (bf16) or quad (int8)
// of dimensions. Values: all dimensions for each token, pair or quad of tokens. Both are the operand
// layouts of Matrix, so that scores and mixing are the same products as projections.
static inline size_t unit_keys_bytes(const Config& c) {
  return (size_t)c.head_dim * kBlock * kind_bytes(c.kv_kind);
}
static inline size_t unit_bytes(const Config& c) {
  size_t scales = c.kv_kind == kInt8 ? 2 * kBlock * sizeof(float) : 0;
  return 2 * unit_keys_bytes(c) + scales;
}
// Neighbouring blocks of one KV head lie side by side: a sequence whose blocks follow each other is
// read as one stream.
static inline uint8_t* unit_at(const Model& m, int layer, int block, int kv_head) {
  size_t index = ((size_t)layer * m.config.kv_heads + kv_head) * m.blocks + block;
  return m.cache + index * m.unit_bytes;
}

// What a level provides.
struct LevelOps {
  // The part of the step that thread `thread` of `threads` does; all threads call it together.
  void (*run_step)(Model& m, int thread, int threads);
  // Puts the rows [begin, end) of a checkpoint matrix into its panels; gate_up: halves interleaved.
  void (*pack)(const Matrix& m, const void* values, int begin, int end, int gate_up);
  // For kernels/limits.py, see limits.h.
  int32_t (*read_all)(const uint8_t* from, size_t bytes);
  int64_t (*multiply)(int rounds);
};
extern const LevelOps ops_generic, ops_avx2, ops_avx512, ops_amx;

}  // namespace cm
