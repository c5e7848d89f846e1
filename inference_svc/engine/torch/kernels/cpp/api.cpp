// The C interface that library.py calls: memory, loading, the choice of a level, a step.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "model.h"
#include "pool.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace cm {
namespace {

enum Error : int32_t { kOk, kNoMemory, kBadToken, kBadBlock, kRotations, kBadRows };

// Zeroed memory on huge pages where the system has them to spare; null when there is none.
void* take(size_t bytes) {
  size_t whole = round_up(bytes + 1, 1 << 21);
  void* memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, whole, MADV_HUGEPAGE);
  return memory;
}

void give(void* memory, size_t bytes) {
  if (memory) munmap(memory, round_up(bytes + 1, 1 << 21));
}

size_t matrix_bytes(const Matrix& m) { return m.panels * m.panel_bytes; }

int cpu_level() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return kGeneric;
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512vnni"))
    return kAvx2;
  constexpr unsigned kAmxTile = 1u << 24, kAmxInt8 = 1u << 25, kAmxBf16 = 1u << 22;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return kAvx512;
  if ((d & (kAmxTile | kAmxInt8 | kAmxBf16)) != (kAmxTile | kAmxInt8 | kAmxBf16)) return kAvx512;
  // The kernel grants the 8 KiB tile state to processes that ask (arch_prctl, Linux 5.16).
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? kAmx : kAvx512;
#else
  return kGeneric;
#endif
}

const LevelOps* ops_of(int level) {
  switch (level) {
#if defined(CM_HAVE_AMX)
    case kAmx: return &ops_amx;
#endif
#if defined(CM_HAVE_AVX512)
    case kAvx512: return &ops_avx512;
#endif
#if defined(CM_HAVE_AVX2)
    case kAvx2: return &ops_avx2;
#endif
    case kGeneric: return &ops_generic;
    default: return nullptr;
  }
}

void release_scratch(Scratch& s) {
  free(s.x);
  free(s.normed);
  free(s.qkv);
  free(s.mixed);
  free(s.inner);
  free(s.operand.int8);
  free(s.operand.high);
  free(s.operand.low);
  free(s.operand.scale);
  free(s.operand.sum);
  free(s.row_chunk);
  s.rows_max = 0;
}

// Zeroed, because padding columns are read and never written.
template <class T>
bool claim(T*& pointer, size_t count) {
  void* memory = nullptr;
  size_t bytes = count * sizeof(T) + 64, huge = 1 << 21;
  if (posix_memalign(&memory, bytes < huge ? 64 : huge, bytes) != 0) return false;
  if (bytes >= huge) madvise(memory, bytes, MADV_HUGEPAGE);
  memset(memory, 0, bytes);
  pointer = static_cast<T*>(memory);
  return true;
}

bool reserve_rows(Model& m, int rows) {
  Scratch& s = m.scratch;
  if (rows <= s.rows_max) return true;
  release_scratch(s);
  const Config& c = m.config;
  size_t n = round_up(rows, 32);
  size_t hidden = round_up(c.hidden, kPad), inner = round_up(c.intermediate, kPad);
  size_t mixed = round_up(q_width(c), kPad), qkv = round_up(q_width(c) + 2 * kv_width(c), kPad);
  size_t widest = hidden > inner ? hidden : inner;
  widest = widest > mixed ? widest : mixed;
  bool ok = claim(s.x, n * hidden) && claim(s.normed, n * hidden) && claim(s.qkv, n * qkv) &&
            claim(s.mixed, n * mixed) && claim(s.inner, n * inner) &&
            claim(s.operand.int8, n * widest) && claim(s.operand.high, n * widest) &&
            claim(s.operand.low, n * widest) && claim(s.operand.scale, n) &&
            claim(s.operand.sum, n) && claim(s.row_chunk, n);
  s.operand.operand_pitch = (int)widest;
  s.rows_max = ok ? (int)n : 0;
  return ok;
}

// Checks a step's numbers, so that a wrong one cannot read or write foreign memory.
int check(const Model& m, const Step& s) {
  if (s.chunk_starts[0] != 0 || s.chunk_starts[s.chunks] != s.rows) return kBadRows;
  for (int c = 0; c < s.chunks; c++)
    if (s.chunk_starts[c] > s.chunk_starts[c + 1]) return kBadRows;
  for (int i = 0; i < s.samples; i++)
    if (s.logit_rows[i] < 0 || s.logit_rows[i] >= s.rows) return kBadRows;
  for (int r = 0; r < s.rows; r++)
    if (s.token_ids[r] < 0 || s.token_ids[r] >= m.config.vocabulary) return kBadToken;
  for (int c = 0; c < s.chunks; c++) {
    int end = s.chunk_begins[c] + s.chunk_starts[c + 1] - s.chunk_starts[c];
    if (s.chunk_begins[c] < 0 || (end + kBlock - 1) / kBlock > s.table_width) return kBadBlock;
    if (end > m.rotations) return kRotations;
    for (int b = 0; b < (end + kBlock - 1) / kBlock; b++) {
      int block = s.block_tables[(size_t)c * s.table_width + b];
      if (block < 0 || block >= m.blocks) return kBadBlock;
    }
  }
  return kOk;
}

// Divides attention into items, and these into key splits when they are too few for the threads.
bool plan(Model& m, const Step& s) {
  const Config& c = m.config;
  int group = c.heads / c.kv_heads, splits = 1;
  free(m.scratch.first_item);
  if (!claim(m.scratch.first_item, s.chunks + 1)) return false;
  int items = 0;
  for (int chunk = 0; chunk < s.chunks; chunk++) {
    int count = s.chunk_starts[chunk + 1] - s.chunk_starts[chunk];
    m.scratch.first_item[chunk] = items;
    items += c.kv_heads * (int)(round_up(count * group, kTileRows) / kTileRows);
    int needed = (int)(round_up(s.chunk_begins[chunk] + count, kSplit) / kSplit);
    splits = splits > needed ? splits : needed;
    for (int r = s.chunk_starts[chunk]; r < s.chunk_starts[chunk + 1]; r++)
      m.scratch.row_chunk[r] = chunk;
  }
  m.scratch.first_item[s.chunks] = items;
  m.splits = items >= pool_threads(m.pool) ? 1 : splits;
  m.items = items * m.splits;
  m.next_item[0] = m.next_item[1] = 0;
  if (m.splits == 1) return true;
  size_t floats = (size_t)s.rows * c.heads * m.splits * (c.head_dim + kBlock);
  if (floats <= m.scratch.partial_floats) return true;
  free(m.scratch.partials);
  m.scratch.partial_floats = floats;
  if (claim(m.scratch.partials, floats)) return true;
  m.scratch.partial_floats = 0;
  return false;
}

void run_task(void* context, int thread, int threads) {
  Model& m = *static_cast<Model*>(context);
  ops_of(m.config.level)->run_step(m, thread, threads);
}

struct PackTask {
  const LevelOps* ops;
  Matrix* matrix;
  const void* values;
  int gate_up;
};

void pack_task(void* context, int thread, int threads) {
  const PackTask& task = *static_cast<PackTask*>(context);
  int rows = task.matrix->outputs;
  task.ops->pack(*task.matrix, task.values, (int)((int64_t)rows * thread / threads),
                 (int)((int64_t)rows * (thread + 1) / threads), task.gate_up);
}

struct LimitTask {
  const LevelOps* ops;
  const uint8_t* memory;  // null: multiply
  size_t bytes;
  int rounds;
  int64_t operations;  // of one thread
  int32_t kept;
};

void limit_task(void* context, int thread, int threads) {
  LimitTask& task = *static_cast<LimitTask*>(context);
  if (task.memory) {
    size_t part = task.bytes / threads / 1024 * 1024;
    __atomic_fetch_add(&task.kept, task.ops->read_all(task.memory + thread * part, part), 0);
  } else {
    __atomic_store_n(&task.operations, task.ops->multiply(task.rounds), 0);
  }
}

}  // namespace

// ---- the exported functions; the meaning of each argument is in library.py

// The highest level that this CPU runs and that was compiled.
CM_EXPORT int32_t cm_level() {
  int level = cpu_level();
  while (!ops_of(level)) level--;
  return level;
}

CM_EXPORT Model* cm_open(const Config* config) {
  Model* m = new Model();
  m->config = *config;
  m->layers = new Layer[config->layers]();
  m->unit_bytes = unit_bytes(*config);
  m->pool = pool_open(config->threads);
  m->scratch.thread_bytes = kThreadScratchBytes;
  if (!claim(m->scratch.thread_base, m->scratch.thread_bytes * config->threads)) return nullptr;
  return m;
}

// part: 0 qkv, 1 out, 2 gate_up, 3 down; layer -1: the output matrix.
CM_EXPORT int32_t cm_load_matrix(Model* m, int32_t layer, int32_t part, int32_t kind,
                                 int32_t outputs, int32_t inputs, const void* values,
                                 const float* scales, const float* bias) {
  Layer* l = layer < 0 ? nullptr : &m->layers[layer];
  Matrix* parts[] = {&l->qkv, &l->out, &l->gate_up, &l->down};
  Matrix& matrix = l ? *parts[part] : m->head;
  int gate_up = l && part == 2;
  matrix.kind = (Kind)kind;
  matrix.outputs = outputs;
  matrix.inputs = inputs;
  matrix.panels = gate_up ? (int)(round_up(outputs / 2, 16) / 16)
                          : (int)(round_up(outputs, kPanel) / kPanel);
  matrix.padded_inputs = (int)round_up(inputs, kPad);
  matrix.panel_bytes = (size_t)matrix.padded_inputs * kPanel * kind_bytes(kind);
  matrix.data = (uint8_t*)take(matrix_bytes(matrix));
  if (!matrix.data) return kNoMemory;
  PackTask task = {ops_of(m->config.level), &matrix, values, gate_up};
  pool_run(m->pool, pack_task, &task);
  const float* vectors[] = {scales, bias};
  float** targets[] = {&matrix.scale, &matrix.bias};
  for (int i = 0; i < 2; i++) {
    if (!vectors[i]) continue;
    if (!claim(*targets[i], (size_t)matrix.panels * kPanel)) return kNoMemory;
    for (int row = 0; row < outputs; row++) {
      int half = outputs / 2, up = gate_up && row >= half, channel = row - up * half;
      int at = gate_up ? channel / 16 * kPanel + up * 16 + channel % 16 : row;
      (*targets[i])[at] = vectors[i][row];
    }
  }
  return kOk;
}

// part: 0 attention norm, 1 MLP norm, 2 query norm, 3 key norm; layer -1: the final norm.
CM_EXPORT int32_t cm_load_norm(Model* m, int32_t layer, int32_t part, int32_t size,
                               const float* values) {
  float* target = nullptr;
  if (!claim(target, round_up(size, kPad))) return kNoMemory;
  memcpy(target, values, size * sizeof(float));
  if (layer < 0) {
    m->final_norm = target;
    return kOk;
  }
  Layer& l = m->layers[layer];
  float** parts[] = {&l.attention_norm, &l.mlp_norm, &l.query_norm, &l.key_norm};
  *parts[part] = target;
  return kOk;
}

CM_EXPORT int32_t cm_load_embedding(Model* m, const void* values) {
  size_t count = (size_t)m->config.vocabulary * m->config.hidden;
  size_t bytes = count * kind_bytes(m->config.embedding_kind);
  m->embedding = take(bytes);
  if (!m->embedding) return kNoMemory;
  memcpy(m->embedding, values, bytes);
  return kOk;
}

CM_EXPORT void cm_set_window(Model* m, int32_t layer, int32_t window) {
  m->layers[layer].window = window;
}

// The tables stay the caller's; positions at or beyond `count` are refused with kRotations.
CM_EXPORT void cm_set_rotations(Model* m, const float* cosines, const float* sines, int32_t count) {
  m->cosines = cosines;
  m->sines = sines;
  m->rotations = count;
}

CM_EXPORT int64_t cm_block_bytes(const Model* m) {
  return (int64_t)m->config.layers * m->config.kv_heads * m->unit_bytes;
}

CM_EXPORT int32_t cm_allocate(Model* m, int32_t blocks) {
  give(m->cache, (size_t)m->blocks * cm_block_bytes(m));
  m->blocks = 0;
  m->cache = (uint8_t*)take((size_t)blocks * cm_block_bytes(m));
  if (!m->cache) return kNoMemory;
  m->blocks = blocks;
  return kOk;
}

CM_EXPORT int32_t cm_step(Model* m, const Step* step) {
  int error = check(*m, *step);
  if (error != kOk) return error;
  if (!reserve_rows(*m, step->rows > step->samples ? step->rows : step->samples)) return kNoMemory;
  if (!plan(*m, *step)) return kNoMemory;
  m->step = step;
  pool_run(m->pool, run_task, m);
  return kOk;
}

// All threads read their part of `bytes` of memory; the caller takes the time.
CM_EXPORT int32_t cm_read_memory(Model* m, const void* memory, int64_t bytes) {
  LimitTask task = {ops_of(m->config.level), (const uint8_t*)memory, (size_t)bytes, 0, 0, 0};
  pool_run(m->pool, limit_task, &task);
  return task.kept;
}

// All threads multiply in registers; returns the operations of all.
CM_EXPORT int64_t cm_multiply(Model* m, int32_t rounds) {
  LimitTask task = {ops_of(m->config.level), nullptr, 0, rounds, 0, 0};
  pool_run(m->pool, limit_task, &task);
  return task.operations * pool_threads(m->pool);
}

CM_EXPORT void cm_copy_block(Model* m, int32_t source, int32_t target) {
  for (int layer = 0; layer < m->config.layers; layer++)
    for (int head = 0; head < m->config.kv_heads; head++)
      memcpy(unit_at(*m, layer, target, head), unit_at(*m, layer, source, head), m->unit_bytes);
}

CM_EXPORT void cm_wipe_block(Model* m, int32_t block) {
  for (int layer = 0; layer < m->config.layers; layer++)
    for (int head = 0; head < m->config.kv_heads; head++)
      memset(unit_at(*m, layer, block, head), 0, m->unit_bytes);
}

CM_EXPORT void cm_close(Model* m) {
  pool_close(m->pool);
  for (int i = 0; i < m->config.layers; i++) {
    Layer& l = m->layers[i];
    for (Matrix* matrix : {&l.qkv, &l.out, &l.gate_up, &l.down}) {
      give(matrix->data, matrix_bytes(*matrix));
      free(matrix->scale);
      free(matrix->bias);
    }
    for (float* norm : {l.attention_norm, l.mlp_norm, l.query_norm, l.key_norm}) free(norm);
  }
  give(m->head.data, matrix_bytes(m->head));
  free(m->head.scale);
  free(m->final_norm);
  give(m->embedding,
       (size_t)m->config.vocabulary * m->config.hidden * kind_bytes(m->config.embedding_kind));
  give(m->cache, (size_t)m->blocks * cm_block_bytes(m));
  release_scratch(m->scratch);
  free(m->scratch.first_item);
  free(m->scratch.partials);
  free(m->scratch.thread_base);
  delete[] m->layers;
  delete m;
}

}  // namespace cm
