// Channel maxima, and smoothing + scaling + rounding of one token after another while its row is
// in the first-level cache. Maxima are taken on bit patterns: magnitudes order like unsigned
// integers, which vectorises, and NaN or infinity come out on top instead of being lost.
#pragma GCC optimize("no-trapping-math", "no-signed-zeros")  // selects instead of branches
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kMagnitude = 0x7fffffffu;

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits & kMagnitude;
}

inline float value_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Largest magnitude of a row, as bits.
uint32_t row_maximum(const float* x, int64_t n) {
  uint32_t best = 0;
  for (int64_t i = 0; i < n; ++i) best = std::max(best, bits_of(x[i]));
  return best;
}

// Largest magnitude of a smoothed row, as bits.
uint32_t smoothed_maximum(const float* __restrict x, const float* __restrict factor, int64_t n) {
  uint32_t best = 0;
  for (int64_t i = 0; i < n; ++i) best = std::max(best, bits_of(x[i] * factor[i]));
  return best;
}

// Rounds a smoothed row into one byte of every word. Levels lie within +-2^22, so the float's own
// rounding gives the nearest, ties to even.
void round_row(const float* __restrict x, const float* __restrict factor, float step, int levels,
               int byte, uint32_t* __restrict words, int64_t n) {
  const float inverse = 1.0f / step, magic = 12582912.0f, lowest = -levels - 1.0f, highest = levels;
  for (int64_t i = 0; i < n; ++i) {
    float level = (x[i] * factor[i] * inverse + magic) - magic;
    level = level < lowest ? lowest : level;
    level = level > highest ? highest : level;
    words[i] |= (static_cast<uint32_t>(static_cast<int32_t>(level)) & 255u) << (8 * byte);
  }
}

void sort_words(const uint32_t* __restrict words, const int64_t* __restrict order,
                uint32_t* __restrict sorted, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sorted[i] = words[order[i]];
}

void take_byte(const uint32_t* __restrict words, int byte, int8_t* __restrict q, int64_t n) {
  for (int64_t i = 0; i < n; ++i) q[i] = static_cast<int8_t>(words[i] >> (8 * byte));
}

template <class Work>
void in_parallel(int64_t items, int threads, const Work& work) {
  threads = std::max<int64_t>(1, std::min<int64_t>(threads, items));
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t)
    others.emplace_back([&, t] { work(items * t / threads, items * (t + 1) / threads); });
  work(0, items / threads);
  for (auto& other : others) other.join();
}

}  // namespace

extern "C" {

// out[c] = max over kept tokens of |x[t,c]|, divided by the token's own maximum if asked for.
// `partial` holds `threads` rows of `channels` zeros.
void channel_absmax(const float* x, const uint8_t* keep, float* partial, int64_t tokens,
                    int64_t channels, int normalize_tokens, int threads) {
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, tokens));
  in_parallel(parts, threads, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      uint32_t* best = reinterpret_cast<uint32_t*>(partial + part * channels);
      for (int64_t t = tokens * part / parts; t < tokens * (part + 1) / parts; ++t) {
        if (keep && !keep[t]) continue;
        const float* row = x + t * channels;
        if (normalize_tokens) {
          const float top = value_of(row_maximum(row, channels));
          if (top == 0.0f) continue;
          for (int64_t c = 0; c < channels; ++c)
            best[c] = std::max(best[c], bits_of(row[c] / top));
        } else {
          for (int64_t c = 0; c < channels; ++c) best[c] = std::max(best[c], bits_of(row[c]));
        }
      }
    }
  });
}

// order[c] is the place in x of the sorted channel c, a permutation. Up to four tokens are rounded
// into the bytes of one word a channel, so that sorting moves words: a quarter of the random reads.
// Multiplying by inverses is several times faster than dividing; a tie may fall to the other side.
void smooth_quantize(const float* x, const int64_t* order, const float* group_scale, int8_t* q,
                     float* row_scale, int64_t tokens, int64_t channels, int64_t group_size,
                     int levels, float clip, int threads) {
  constexpr int64_t kRows = 4;
  std::vector<float> factor(channels);
  for (int64_t c = 0; c < channels; ++c) factor[order[c]] = 1.0f / group_scale[c / group_size];
  in_parallel((tokens + kRows - 1) / kRows, threads, [&](int64_t first, int64_t last) {
    std::vector<uint32_t> words(channels), sorted(channels);
    for (int64_t t = first * kRows; t < std::min(last * kRows, tokens); t += kRows) {
      const int rows = static_cast<int>(std::min(kRows, tokens - t));
      std::fill(words.begin(), words.end(), 0u);
      for (int r = 0; r < rows; ++r) {
        const float* row = x + (t + r) * channels;
        float step = value_of(smoothed_maximum(row, factor.data(), channels)) * clip / levels;
        if (step == 0.0f) step = 1.0f;
        row_scale[t + r] = step;
        round_row(row, factor.data(), step, levels, r, words.data(), channels);
      }
      sort_words(words.data(), order, sorted.data(), channels);
      for (int r = 0; r < rows; ++r)
        take_byte(sorted.data(), r, q + (t + r) * channels, channels);
    }
  });
}

}
