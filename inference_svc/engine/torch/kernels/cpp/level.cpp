// Everything that computes, compiled once for each instruction-set level: build.py gives CM_LEVEL,
// CM_NAMESPACE and the flags.
#include "limits.h"
#include "pack.h"
#include "step.h"

namespace cm {
static_assert(sizeof(CM_NAMESPACE::TileScratch) <= kThreadScratchBytes, "enlarge it");
#define CM_JOIN(a, b) a##b
#define CM_OPS(name) CM_JOIN(ops_, name)
const LevelOps CM_OPS(CM_NAMESPACE) = {CM_NAMESPACE::run_step, CM_NAMESPACE::pack,
                                         CM_NAMESPACE::read_all, CM_NAMESPACE::multiply};
}  // namespace cm
