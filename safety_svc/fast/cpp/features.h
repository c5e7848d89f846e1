// Hashed n-grams of a text and the sum of their weights: classifier/features.py in one pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace chatmesh {

// The numbers of features.py; its comments say what they are.
constexpr int kBucketBits = 17;
constexpr std::size_t kBucketCount = std::size_t{1} << kBucketBits;
constexpr std::size_t kLengthMax = 4096;
constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15u;
constexpr std::uint64_t kMix = 0xD6E8FEB86659FD93u;
constexpr std::uint64_t kWordKind = 0x51 * kBase, kPairKind = 0x72 * kBase;
constexpr std::array<std::uint64_t, 3> kGramKinds{0x93 * kBase, 0xB4 * kBase, 0xD5 * kBase};
constexpr std::size_t kGramLengthMin = 3;

// Weights of a linear model with the scratch space to sum them: one caller at a time.
class LinearModel {
 public:
  struct Sum {
    std::int32_t steps;  // of the weights of all distinct features
    std::int32_t count;  // of distinct features
  };

  // `weights`: one for each bucket; they are copied.
  explicit LinearModel(const std::int8_t* weights) : weights_(weights, weights + kBucketCount) {
    powers_[0] = 1;
    for (std::size_t i = 1; i < powers_.size(); ++i) powers_[i] = powers_[i - 1] * kBase;
    for (int c = 0; c < 256; ++c) {
      in_word_[c] = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c >= 0x80;
    }
  }

  // `text`: UTF-8 in lower case; what is beyond kLengthMax - 2 bytes is not looked at.
  Sum sum(const char* text, std::size_t size) {
    begin(text, size);
    if (add_words()) add_grams();
    return sum_;
  }

 private:
  // Takes the text with a space before and behind it, and the sums that hashes come from.
  void begin(const char* text, std::size_t size) {
    size_ = (size < kLengthMax - 2 ? size : kLengthMax - 2) + 2;
    data_[0] = data_[size_ - 1] = ' ';
    std::memcpy(&data_[1], text, size_ - 2);
    sums_[0] = 0;
    std::uint16_t inside = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      inside = in_word_[data_[i]] ? inside + 1 : 0;
      inside_[i] = inside;
      sums_[i + 1] = sums_[i] + (inside ? data_[i] : std::uint64_t{' '}) * powers_[i];
    }
    sum_ = {0, 0};
    if (++epoch_ == 0) {  // after four billion texts
      seen_.fill(0);
      epoch_ = 1;
    }
  }

  // Words and pairs of words; false when there is none.
  bool add_words() {
    bool any = false;
    std::uint64_t before = 0;
    for (std::size_t end = 1; end < size_; ++end) {
      if (inside_[end] || !inside_[end - 1]) continue;
      const std::uint64_t word = hash(end - inside_[end - 1], end);
      add(word + kWordKind);
      if (any) add(before * 3 + word * 7 + kPairKind);
      before = word;
      any = true;
    }
    return any;
  }

  // Runs of 3 to 5 characters of one word, perhaps with the space at either end.
  void add_grams() {
    for (std::size_t kind = 0; kind < kGramKinds.size(); ++kind) {
      const std::size_t length = kGramLengthMin + kind, middle = length - 2;
      for (std::size_t at = 0; at + length <= size_; ++at) {
        if (inside_[at + middle] >= middle) add(hash(at, at + length) + kGramKinds[kind]);
      }
    }
  }

  // The hash of the run [start, end), wherever it stands.
  std::uint64_t hash(std::size_t start, std::size_t end) const {
    return (sums_[end] - sums_[start]) * powers_[kLengthMax - start];
  }

  void add(std::uint64_t hash) {
    const std::uint64_t bucket = ((hash ^ (hash >> 32)) * kMix) >> (64 - kBucketBits);
    if (seen_[bucket] == epoch_) return;
    seen_[bucket] = epoch_;
    sum_.steps += weights_[bucket];
    ++sum_.count;
  }

  std::vector<std::int8_t> weights_;
  std::array<std::uint64_t, kLengthMax + 8> powers_{};
  std::array<bool, 256> in_word_{};
  // Scratch space of the text in hand.
  std::array<std::uint8_t, kLengthMax> data_{};
  std::array<std::uint16_t, kLengthMax> inside_{};  // bytes of the word until here, 0 outside
  std::array<std::uint64_t, kLengthMax + 1> sums_{};
  std::size_t size_ = 0;
  Sum sum_{0, 0};
  // In which text a bucket was last seen: nothing is cleared between two texts.
  std::array<std::uint32_t, kBucketCount> seen_{};
  std::uint32_t epoch_ = 0;
};

}  // namespace chatmesh
