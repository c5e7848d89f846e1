// Whether a text is plain and has no other readings: most texts, told in one microsecond or two.
//
// "Yes" is proof that normalise.plain() only strips the text and that normalise.readings() of it is
// empty. "No" says nothing: Python looks then. Each function below answers for one of the patterns
// of normalise.py and encodings.py, whose names are given, and is a little stricter than it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace chatmesh {

using Char = char32_t;

// What is known of a character beyond ASCII, from Python's tables.
enum Kind : std::uint8_t { kUnknown = 0, kSign = 1, kLetter = 2 };

constexpr std::size_t kPlainLengthMax = 2000;  // encodings._LOOK_LENGTH
constexpr std::size_t kTableSize = 0x10000;

// Letters of a word, five bits each, as one number; 0: it is too long to be a common one.
constexpr int kPackedLengthMax = 12, kPackedBits = 5;

inline bool is_digit(Char c) { return c >= '0' && c <= '9'; }
inline bool is_ascii_letter(Char c) { return c < 128 && (c | 32) >= 'a' && (c | 32) <= 'z'; }
inline bool is_hex(Char c) { return is_digit(c) || (c < 128 && (c | 32) >= 'a' && (c | 32) <= 'f'); }
inline bool is_space(Char c) { return c == ' ' || c == '\n'; }  // the only ones of a plain text
inline bool is_one_of(Char c, const char* set) { return c && c < 128 && std::strchr(set, int(c)); }
inline bool is_leet(Char c) { return is_digit(c) || is_one_of(c, "@$!|+") || c == 0x20AC; }

class PlainText {
 public:
  // `kinds`: of the first kTableSize characters. `common`: the common words of English, in lower
  // case, each ended by a 0, all of them by another.
  PlainText(const std::uint8_t* kinds, const char* common) : kinds_(kinds, kinds + kTableSize) {
    for (; *common; common += std::strlen(common) + 1) {
      std::uint64_t packed = 0;
      for (const char* c = common; *c; ++c) packed = packed << kPackedBits | (*c & 31);
      common_.push_back(packed);
    }
    std::sort(common_.begin(), common_.end());
  }

  bool has_no_other_reading(const Char* text, std::size_t size) const {
    const View view{text, size};
    return size <= kPlainLengthMax && is_plain(view) && !may_be_encoded(view) &&
           !has_letters_apart(view) && !may_be_pieces(view) && !has_leet(view) &&
           !is_english_undone(view);
  }

 private:
  struct View {
    const Char* text;
    std::size_t size;
    Char operator[](std::size_t i) const { return i < size ? text[i] : U' '; }  // -1 too
  };
  struct English {
    int words = 0, common = 0, rotated = 0, reversed = 0;
    // encodings._undone: something else is English where this is none.
    bool is_undone() const {
      return common * 12 <= words && std::max(rotated, reversed) > std::max(2, 2 * common);
    }
  };

  bool is_letter(Char c) const {
    return is_ascii_letter(c) || (c >= 128 && c < kTableSize && kinds_[c] == kLetter);
  }
  bool is_alnum(Char c) const { return is_letter(c) || is_digit(c); }
  bool is_word(Char c) const { return is_alnum(c) || c == '_'; }

  // normalise.plain: known characters; no tabs, three spaces, three line ends, five alike.
  bool is_plain(View t) const {
    for (std::size_t i = 0; i < t.size; ++i) {
      const Char c = t[i];
      if (c < 128 ? (c < 32 && c != '\n') || c == 127 : c >= kTableSize || !kinds_[c]) return false;
      if (is_space(c)) {
        if (i >= 2 && t[i - 1] == c && t[i - 2] == c) return false;
      } else if (i >= 4 && !is_digit(c) && t[i - 1] == c && t[i - 2] == c && t[i - 3] == c &&
                 t[i - 4] == c) {
        return false;
      }
    }
    return true;
  }

  // encodings._opened: _BASE64 and _BASE32, _HEX, _BINARY, _CODES, _MORSE by the length of their
  // runs; _PERCENT, _ENTITY and _ESCAPES by their first two characters.
  static bool may_be_encoded(View t) {
    int base64 = 0, hex = 0, binary = 0, codes = 0, morse = 0;
    for (std::size_t i = 0; i < t.size; ++i) {
      const Char c = t[i], next = t[i + 1];
      base64 = is_ascii_letter(c) || is_digit(c) || is_one_of(c, "+/_-") ? base64 + 1 : 0;
      hex = is_hex(c) ? hex + 1 : is_one_of(c, "xX\\ ,:") ? hex : 0;
      binary = is_one_of(c, "01 ,") ? binary + 1 : 0;
      codes = is_digit(c) || is_one_of(c, " ,") ? codes + 1 : 0;
      morse = is_one_of(c, ".-/ \n") || c == 0xB7 || c == 0x2013 ? morse + 1 : 0;
      if (base64 >= 16 || hex >= 16 || binary >= 32 || codes >= 26 || morse >= 12) {
        return true;
      }
      if (c == '%' && is_hex(next)) return true;
      if ((c == '&' && next == '#') || (c == '\\' && next == 'u')) return true;
    }
    return false;
  }

  // encodings._APART: four letters or digits alone, with one to three signs between them.
  bool has_letters_apart(View t) const {
    int count = 0;
    std::size_t gap = 0;
    for (std::size_t i = 0; i < t.size; ++i) {
      if (is_alnum(t[i])) {
        const bool alone = !is_alnum(t[i - 1]) && !is_alnum(t[i + 1]);
        count = !alone ? 0 : count && gap >= 1 && gap <= 3 ? count + 1 : 1;
        if (count >= 4) return true;
        gap = 0;
      } else if (is_one_of(t[i], " .-*_|/~")) {
        ++gap;
      } else {
        count = 0;
      }
    }
    return false;
  }

  // joins.joined: more than a few of what its patterns begin with.
  bool may_be_pieces(View t) const {
    int quotes = 0, alone = 0, gap = 0, tags = 0, hyphens = 0, pairs = 0, words = 0;
    int capitals = 0, lower = 0, items = 0;
    std::size_t line = 0;  // where it begins
    int spaces = 0;        // in the line
    bool item = false;
    for (std::size_t i = 0; i < t.size; ++i) {
      const Char c = t[i], before = t[i - 1], next = t[i + 1];
      quotes += is_one_of(c, "\"'") && !(is_alnum(before) && is_alnum(next));
      words += !is_space(c) && is_space(before);
      if (is_alnum(c)) {
        if (is_alnum(before) || is_alnum(next)) {
          alone = 0;
        } else {
          alone = alone && gap <= 12 ? alone + 1 : 1;
        }
        gap = 0;
      } else {
        ++gap;
      }
      tags += (c == '<' && is_word(before)) || (is_one_of(c, "*~") && next == c && is_word(before));
      hyphens += c == '-' && is_letter(before) && is_letter(next);
      pairs += is_letter(c) && next == c && is_letter(t[i + 2]) && t[i + 3] == t[i + 2];
      const bool is_lower = c >= 'a' && c <= 'z', is_capital = c >= 'A' && c <= 'Z';
      capitals = is_capital ? capitals + 1 : is_lower ? capitals : 0;
      lower = is_lower ? lower + 1 : is_capital ? lower : 0;
      item = item || (i < line + 5 && is_one_of(c, ").:]") && is_digit(before));
      spaces += c == ' ';
      if (c == '\n' || i + 1 == t.size) {
        items += item && spaces <= 6;
        line = i + 1;
        spaces = 0;
        item = false;
      }
      if (alone >= 10 || (capitals >= 5 && lower)) return true;
    }
    return quotes >= 6 || tags >= 2 || pairs >= 3 || items >= 3 ||
           (hyphens >= 3 && 4 * hyphens >= words);
  }

  // encodings._MIXED and _letters_only: somewhere a digit or sign touches a letter, and there is a
  // word that would be read otherwise.
  bool has_leet(View t) const {
    bool mixed = false, changed = false;
    for (std::size_t start = 0, end; start < t.size; start = end + 1) {
      bool leet = false;
      for (end = start; end < t.size && !is_space(t[end]); ++end) {
        if (!is_leet(t[end])) continue;
        leet = true;
        mixed = mixed || is_letter(t[end + 1]) || is_letter(t[end - 1]);
      }
      changed = changed || (leet && may_change(t, start, end));
    }
    return mixed && changed;
  }

  // False when encodings._letters_only leaves the word [start, end) as it is.
  bool may_change(View t, std::size_t start, std::size_t end) const {
    while (end > start && is_one_of(t[end - 1], ".,;:!?")) --end;
    bool leet = false, ascii_letters = false;
    for (std::size_t i = start; i < end; ++i) {
      leet = leet || is_leet(t[i]);
      ascii_letters = ascii_letters || is_ascii_letter(t[i]);
    }
    if (!leet || !ascii_letters) return false;
    while (end > start && !is_word(t[end - 1])) --end;
    while (start < end && !is_word(t[start])) ++start;
    return !is_unit(t, start, end) && !is_name(t, start, end) && !is_hex_id(t, start, end);
  }

  // encodings._PLAIN: "10th", "GPT4".
  static bool is_unit(View t, std::size_t start, std::size_t end) {
    std::size_t i = start;
    while (i < end && is_digit(t[i])) ++i;
    const std::size_t digits = i - start;
    while (i < end && is_ascii_letter(t[i])) ++i;
    if (digits) return i == end && end - start - digits <= 2;
    while (i < end && is_digit(t[i])) ++i;
    return i == end;
  }

  // encodings._PLAIN: "a_1", "v1.2", "src/x1": a word, one of _ . /, and more of a word.
  bool is_name(View t, std::size_t start, std::size_t end) const {
    std::size_t i = start;
    for (; i < end && is_word(t[i]); ++i) {
      if (t[i] == '_' && i + 1 < end && is_word(t[i + 1])) return true;
    }
    return i + 1 < end && is_one_of(t[i], "./") && is_word(t[i + 1]);
  }

  // encodings._PLAIN: "3f2a9c1", "123e4567-e89b".
  static bool is_hex_id(View t, std::size_t start, std::size_t end) {
    const auto is_lower_hex = [](Char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); };
    std::size_t i = start;
    while (i < end && is_lower_hex(t[i])) ++i;
    if (i - start < 6) return false;
    while (i < end && (is_lower_hex(t[i]) || t[i] == '-')) ++i;
    return i == end;
  }

  // encodings._rotated and _reversed: the text, or one of its lines, would be English only so.
  bool is_english_undone(View t) const {
    English all;
    for (std::size_t start = 0, end; start <= t.size; start = end + 1) {
      English line;
      for (end = start; end < t.size && t[end] != '\n';) {
        if (is_ascii_letter(t[end])) {
          end = count_word(t, end, line);
        } else {
          ++end;
        }
      }
      if (line.is_undone()) return true;
      all.words += line.words;
      all.common += line.common;
      all.rotated += line.rotated;
      all.reversed += line.reversed;
    }
    return all.is_undone();
  }

  // Counts the word that begins at `start`; returns where it ends.
  std::size_t count_word(View t, std::size_t start, English& english) const {
    std::uint64_t word = 0, rotated = 0, reversed = 0;
    std::size_t end = start;
    for (; is_ascii_letter(t[end]); ++end) {
      const std::uint64_t letter = t[end] & 31, place = end - start;
      if (place >= kPackedLengthMax) continue;
      word = word << kPackedBits | letter;
      rotated = rotated << kPackedBits | (letter > 13 ? letter - 13 : letter + 13);
      reversed |= letter << (kPackedBits * place);
    }
    const std::size_t length = end - start;
    if (length < 2) return end;
    ++english.words;
    if (length > kPackedLengthMax) return end;
    english.common += is_common(word);
    english.rotated += is_common(rotated);
    english.reversed += is_common(reversed);
    return end;
  }

  bool is_common(std::uint64_t packed) const {
    return std::binary_search(common_.begin(), common_.end(), packed);
  }

  std::vector<std::uint8_t> kinds_;
  std::vector<std::uint64_t> common_;
};

}  // namespace chatmesh
