// The C interface of the library. Nothing is kept between calls but what a handle holds, and a
// handle serves one caller at a time: library.py calls with Python's global lock held.
#include <cstdint>
#include <new>

#include "features.h"
#include "plain.h"
#include "wordpiece.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using chatmesh::LinearModel;
using chatmesh::PlainText;
using chatmesh::Vocabulary;

// Each *_open returns nullptr when there is no memory.

EXPORT LinearModel* cm_linear_open(const std::int8_t* weights) {
  return new (std::nothrow) LinearModel(weights);
}

// steps * 2^20 + count: both are small, and one number is returned faster than a struct.
EXPORT std::int64_t cm_linear_sum(LinearModel* model, const char* text, std::size_t size) {
  const LinearModel::Sum sum = model->sum(text, size);
  return std::int64_t{sum.steps} * (1 << 20) + sum.count;
}

EXPORT void cm_linear_close(LinearModel* model) { delete model; }

EXPORT PlainText* cm_plain_open(const std::uint8_t* kinds, const char* common) {
  return new (std::nothrow) PlainText(kinds, common);
}

// `text`: UTF-32 of this machine.
EXPORT int cm_plain_is_all(const PlainText* plain, const char32_t* text, std::size_t size) {
  return plain->has_no_other_reading(text, size);
}

EXPORT void cm_plain_close(PlainText* plain) { delete plain; }

EXPORT Vocabulary* cm_vocabulary_open(std::int32_t unknown) {
  return new (std::nothrow) Vocabulary(unknown);
}

EXPORT void cm_vocabulary_add(Vocabulary* vocabulary, const char* piece, std::int32_t id) {
  vocabulary->add(piece, id);
}

// `places`: room for three times `size` numbers: ids, starts, ends.
EXPORT int cm_vocabulary_pieces(const Vocabulary* vocabulary, const char* text, std::size_t size,
                                std::int32_t* places) {
  return vocabulary->pieces(text, size, places, places + size, places + 2 * size);
}

EXPORT void cm_vocabulary_close(Vocabulary* vocabulary) { delete vocabulary; }
