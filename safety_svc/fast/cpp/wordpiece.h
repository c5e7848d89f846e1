// WordPiece (Schuster and Nakajima 2012) as BERT has it, for texts of printable ASCII.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace chatmesh {

class Vocabulary {
 public:
  static constexpr std::size_t kWordLengthMax = 100;
  static constexpr int kNotAscii = -1;

  explicit Vocabulary(std::int32_t unknown) : unknown_(unknown) {}

  // `piece`: one that continues a word begins with "##".
  void add(const std::string& piece, std::int32_t id) { ids_[piece] = id; }

  // The pieces of `text`: ids, and where each begins and ends. Each array has room for `size`.
  // Returns their count, or kNotAscii for a text that another tokenizer must read.
  int pieces(const char* text, std::size_t size, std::int32_t* ids, std::int32_t* starts,
             std::int32_t* ends) const {
    Pieces found{ids, starts, ends, 0};
    for (std::size_t at = 0; at < size;) {
      const unsigned char c = text[at];
      if (is_space(c)) {
        ++at;
        continue;
      }
      if (c < 32 || c > 126) return kNotAscii;
      std::size_t end = at + 1;
      if (is_alnum(c)) {
        while (end < size && is_alnum(text[end])) ++end;
      }
      add_word(text, at, end, found);
      at = end;
    }
    return found.count;
  }

 private:
  struct Pieces {
    std::int32_t *ids, *starts, *ends;
    int count;
    void add(std::int32_t id, std::size_t start, std::size_t end) {
      ids[count] = id;
      starts[count] = static_cast<std::int32_t>(start);
      ends[count++] = static_cast<std::int32_t>(end);
    }
  };

  static bool is_space(unsigned char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
  static bool is_alnum(unsigned char c) {
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
  }
  static char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 32) : c; }

  // The longest piece first; a word that is not wholly made of pieces is one unknown one.
  void add_word(const char* text, std::size_t start, std::size_t end, Pieces& found) const {
    const int before = found.count;
    bool whole = end - start <= kWordLengthMax;
    for (std::size_t at = start; whole && at < end;) {
      const std::size_t stop = add_longest(text, at, end, at > start, found);
      whole = stop > at;
      at = stop;
    }
    if (whole) return;
    found.count = before;
    found.add(unknown_, start, end);
  }

  // Adds the longest piece at `at`; returns where it ends, or `at` when there is none.
  std::size_t add_longest(const char* text, std::size_t at, std::size_t end, bool continues,
                          Pieces& found) const {
    std::string piece(continues ? "##" : "");
    const std::size_t prefix = piece.size();
    for (std::size_t i = at; i < end; ++i) piece.push_back(lower(text[i]));
    for (; piece.size() > prefix; piece.pop_back()) {
      const auto entry = ids_.find(piece);
      if (entry == ids_.end()) continue;
      const std::size_t stop = at + piece.size() - prefix;
      found.add(entry->second, at, stop);
      return stop;
    }
    return at;
  }

  std::int32_t unknown_;
  std::unordered_map<std::string, std::int32_t> ids_;
};

}  // namespace chatmesh
