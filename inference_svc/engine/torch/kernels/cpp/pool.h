// Threads that wait by spinning a little and then sleeping: a step has ~10 barriers per layer, each
// shorter than a wake-up, but a neighbour may hold a core for milliseconds.
#pragma once
#include <stdint.h>

namespace cm {

struct Pool;
typedef void (*Task)(void* context, int thread, int threads);

Pool* pool_open(int threads);
void pool_close(Pool* pool);
int pool_threads(const Pool* pool);
// Runs the task on all threads, the caller being thread 0; returns when all are done.
void pool_run(Pool* pool, Task task, void* context);
// All threads of a running task meet here.
void pool_barrier(Pool* pool);

}  // namespace cm
