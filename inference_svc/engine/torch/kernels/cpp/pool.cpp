#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>

namespace cm {
namespace {

// About 30 us of spinning (a pause is 40 to 140 cycles), then the thread sleeps until it is woken.
constexpr int kSpins = 1000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// A counter that threads wait on until it leaves a known value.
struct alignas(64) Event {
  std::atomic<int> value{0};
  std::atomic<int> sleepers{0};

  void wait_while(int known) {
    for (int spin = 0; spin < kSpins; spin++) {
      if (value.load(std::memory_order_acquire) != known) return;
      pause();
    }
    sleepers.fetch_add(1);
    while (value.load() == known)
      syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, known, nullptr, nullptr, 0);
    sleepers.fetch_sub(1);
  }

  void set(int next) {
    value.store(next);
    if (sleepers.load() > 0)
      syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
};

}  // namespace

struct Pool {
  int threads;
  Event started, passed;
  alignas(64) std::atomic<int> arrived{0};
  Task task = nullptr;
  void* context = nullptr;
  bool closing = false;
  pthread_t* workers;
};

namespace {

struct WorkerArgs {
  Pool* pool;
  int thread;
};

void* work(void* raw) {
  WorkerArgs args = *static_cast<WorkerArgs*>(raw);
  delete static_cast<WorkerArgs*>(raw);
  Pool* pool = args.pool;
  for (int generation = 0;; generation++) {
    pool->started.wait_while(generation);
    if (pool->closing) return nullptr;
    pool->task(pool->context, args.thread, pool->threads);
    pool_barrier(pool);
  }
}

}  // namespace

Pool* pool_open(int threads) {
  Pool* pool = new Pool;
  pool->threads = threads;
  pool->workers = new pthread_t[threads];
  for (int thread = 1; thread < threads; thread++) {
    if (pthread_create(&pool->workers[thread], nullptr, work, new WorkerArgs{pool, thread}) != 0) {
      pool->threads = thread;  // the system allows no more: go on with those there are
      break;
    }
  }
  return pool;
}

void pool_close(Pool* pool) {
  pool->closing = true;
  pool->started.set(pool->started.value.load() + 1);
  for (int thread = 1; thread < pool->threads; thread++)
    pthread_join(pool->workers[thread], nullptr);
  delete[] pool->workers;
  delete pool;
}

int pool_threads(const Pool* pool) { return pool->threads; }

void pool_run(Pool* pool, Task task, void* context) {
  if (pool->threads > 1) {
    pool->task = task;
    pool->context = context;
    pool->started.set(pool->started.value.load(std::memory_order_relaxed) + 1);
  }
  task(context, 0, pool->threads);
  pool_barrier(pool);
}

void pool_barrier(Pool* pool) {
  if (pool->threads == 1) return;
  int round = pool->passed.value.load(std::memory_order_relaxed);
  if (pool->arrived.fetch_add(1, std::memory_order_acq_rel) == pool->threads - 1) {
    pool->arrived.store(0, std::memory_order_relaxed);
    pool->passed.set(round + 1);
  } else {
    pool->passed.wait_while(round);
  }
}

}  // namespace cm
