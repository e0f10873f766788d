// Channel maxima and their order, and smoothing + scaling + rounding of one token after another
// while its row is in the first-level cache. Maxima are taken on bit patterns: magnitudes order
// like unsigned integers, which vectorises, and NaN or infinity come out on top instead of being
// lost.
#pragma GCC optimize("no-trapping-math", "no-signed-zeros")  // selects instead of branches
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are bytes of words, low first");

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

// Rounds a smoothed row. Levels lie within +-2^22, so the float's own rounding gives the nearest,
// ties to even, and leaves it in the lowest byte of its bits.
template <bool kClamp>
void round_row(const float* __restrict x, const float* __restrict factor, float inverse, int levels,
               uint8_t* __restrict q, int64_t n) {
  const float magic = 12582912.0f;
  const float lowest = magic - levels - 1.0f, highest = magic + levels;
  for (int64_t i = 0; i < n; ++i) {
    float level = x[i] * factor[i] * inverse + magic;
    if (kClamp) {
      level = level < lowest ? lowest : level;
      level = level > highest ? highest : level;
    }
    uint32_t bits;
    std::memcpy(&bits, &level, 4);
    q[i] = static_cast<uint8_t>(bits);
  }
}

constexpr int64_t kRows = 8;

// Eight rows of bytes, one after the other, into one word a channel.
void interleave(const uint8_t* __restrict rows, uint64_t* __restrict words, int64_t n) {
  uint8_t* bytes = reinterpret_cast<uint8_t*>(words);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t r = 0; r < kRows; ++r) bytes[kRows * i + r] = rows[r * n + i];
}

// Four rows of bytes, one after the other, out of one word a channel.
void separate(const uint32_t* __restrict words, uint8_t* __restrict rows, int64_t n) {
  for (int r = 0; r < 4; ++r)
    for (int64_t i = 0; i < n; ++i) rows[r * n + i] = static_cast<uint8_t>(words[i] >> (8 * r));
}

// Sorts the channels of rounded rows. Eight rows go at once: the random reads are an eighth.
class ChannelSorter {
 public:
  ChannelSorter(const int64_t* order, int64_t channels)
      : order_(order), n_(channels), words_(channels), halves_(2 * channels) {}

  void eight_rows(const uint8_t* rows, uint8_t* q) {
    const int64_t n = n_;
    interleave(rows, words_.data(), n);
    uint32_t* __restrict low = halves_.data();
    uint32_t* __restrict high = low + n;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t word = words_[order_[i]];
      low[i] = static_cast<uint32_t>(word);
      high[i] = static_cast<uint32_t>(word >> 32);
    }
    separate(low, q, n);
    separate(high, q + 4 * n, n);
  }

  void one_row(const uint8_t* __restrict row, uint8_t* __restrict q) const {
    for (int64_t i = 0; i < n_; ++i) q[i] = row[order_[i]];
  }

 private:
  const int64_t* order_;
  int64_t n_;
  std::vector<uint64_t> words_;
  std::vector<uint32_t> halves_;
};

// Raises `best` to the magnitudes of a row, or of a row over its own largest one.
void raise_to_row(const float* __restrict row, bool normalize, uint32_t* __restrict best,
                  int64_t n) {
  if (!normalize) {
    for (int64_t c = 0; c < n; ++c) best[c] = std::max(best[c], bits_of(row[c]));
    return;
  }
  const float top = value_of(row_maximum(row, n));
  if (top == 0.0f) return;
  for (int64_t c = 0; c < n; ++c) best[c] = std::max(best[c], bits_of(row[c] / top));
}

// Places of the keys from the largest to the smallest, equal ones in their order: a radix sort.
void sort_descending(const uint32_t* keys, int64_t* order, int64_t n) {
  constexpr int kDigit = 8, kDigits = 4;
  std::vector<uint64_t> from(n), to(n);
  for (int64_t i = 0; i < n; ++i)
    from[i] = static_cast<uint64_t>(~keys[i] & kMagnitude) << 32 | static_cast<uint64_t>(i);
  for (int digit = 0; digit < kDigits; ++digit) {
    const int shift = 32 + kDigit * digit;
    constexpr uint64_t mask = (1u << kDigit) - 1;
    int64_t start[(1 << kDigit) + 1] = {};
    for (int64_t i = 0; i < n; ++i) ++start[(from[i] >> shift & mask) + 1];
    for (int64_t d = 0; d <= static_cast<int64_t>(mask); ++d) start[d + 1] += start[d];
    for (int64_t i = 0; i < n; ++i) to[start[from[i] >> shift & mask]++] = from[i];
    std::swap(from, to);
  }
  for (int64_t i = 0; i < n; ++i) order[i] = static_cast<int64_t>(from[i] & 0xffffffffu);
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

// For each sequence: channels by falling maximum over its kept tokens of |x[t,c]|, each token
// divided by its own maximum first if asked for, and the largest maximum of each run of
// `group_size` channels, at least `smallest`.
void sorted_channel_scale(const float* x, const uint8_t* keep, int64_t* order, float* group_scale,
                  int64_t batch, int64_t tokens, int64_t channels, int64_t group_size,
                  int normalize_tokens, float smallest, int threads) {
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, tokens));
  std::vector<uint32_t> best(parts * channels);
  for (int64_t b = 0; b < batch; ++b) {
    std::fill(best.begin(), best.end(), bits_of(smallest));
    in_parallel(parts, threads, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part)
        for (int64_t t = tokens * part / parts; t < tokens * (part + 1) / parts; ++t) {
          const int64_t row = b * tokens + t;
          if (keep && !keep[row]) continue;
          raise_to_row(x + row * channels, normalize_tokens, &best[part * channels], channels);
        }
    });
    for (int64_t i = channels; i < parts * channels; ++i)
      best[i % channels] = std::max(best[i % channels], best[i]);
    sort_descending(best.data(), order, channels);
    for (int64_t c = 0; c < channels; c += group_size) *group_scale++ = value_of(best[order[c]]);
    order += channels;
  }
}

// order[c] is the place in x of the sorted channel c, a permutation; levels go to their sorted
// places. Multiplying by inverses is several times faster than dividing; a tie may fall to the
// other side.
void smooth_quantize(const float* x, const int64_t* order, const float* group_scale, uint8_t* q,
                     float* row_scale, int64_t batch, int64_t tokens, int64_t channels,
                     int64_t group_size, int levels, float clip, int threads) {
  const int64_t groups = (channels + group_size - 1) / group_size;
  std::vector<float> factor(channels);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t c = 0; c < channels; ++c) factor[order[c]] = 1.0f / group_scale[c / group_size];
    in_parallel((tokens + kRows - 1) / kRows, threads, [&](int64_t first, int64_t last) {
      ChannelSorter sorter(order, channels);
      std::vector<uint8_t> rounded(kRows * channels);
      for (int64_t t = first * kRows; t < std::min(last * kRows, tokens); t += kRows) {
        const int64_t rows = std::min(kRows, tokens - t);
        for (int64_t r = 0; r < rows; ++r) {
          const float* row = x + (t + r) * channels;
          float step = value_of(smoothed_maximum(row, factor.data(), channels)) * clip / levels;
          if (step == 0.0f) step = 1.0f;
          row_scale[t + r] = step;
          // Where the largest value is represented nothing has to be clamped: half the time.
          const float inverse = 1.0f / step;
          const bool represented = clip >= 1.0f && std::isfinite(inverse);
          (represented ? round_row<false> : round_row<true>)(row, factor.data(), inverse, levels,
                                                             &rounded[r * channels], channels);
        }
        if (rows == kRows) {
          sorter.eight_rows(rounded.data(), q + t * channels);
        } else {
          for (int64_t r = 0; r < rows; ++r)
            sorter.one_row(&rounded[r * channels], q + (t + r) * channels);
        }
      }
    });
    x += tokens * channels, q += tokens * channels, row_scale += tokens;
    order += channels, group_scale += groups;
  }
}

}
