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
constexpr int kLanes = 64;

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
  uint32_t lanes[kLanes] = {0};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] = std::max(lanes[lane], bits_of(x[i + lane]));
  uint32_t best = 0;
  for (; i < n; ++i) best = std::max(best, bits_of(x[i]));
  for (uint32_t lane : lanes) best = std::max(best, lane);
  return best;
}

void gather_and_scale(const float* __restrict x, const int32_t* __restrict order,
                      const float* __restrict factor, float* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[order[i]] * factor[i];
}

// Levels lie within +-2^22, so the float's own rounding gives the nearest, ties to even.
void round_row(const float* __restrict x, float step, int levels, int8_t* __restrict q, int64_t n) {
  const float factor = 1.0f / step, magic = 12582912.0f, lowest = -levels - 1.0f, highest = levels;
  for (int64_t i = 0; i < n; ++i) {
    float level = (x[i] * factor + magic) - magic;
    level = level < lowest ? lowest : level;
    level = level > highest ? highest : level;
    q[i] = static_cast<int8_t>(static_cast<int32_t>(level));
  }
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

// factor[c] is the inverse smoothing scale of the sorted channel c, order[c] its place in x.
// Multiplying by inverses is several times faster than dividing; a tie may fall to the other side.
void smooth_quantize(const float* x, const int32_t* order, const float* factor, int8_t* q,
                     float* row_scale, int64_t tokens, int64_t channels, int levels, float clip,
                     int threads) {
  in_parallel(tokens, threads, [&](int64_t first, int64_t last) {
    std::vector<float> smoothed(channels);
    for (int64_t t = first; t < last; ++t) {
      gather_and_scale(x + t * channels, order, factor, smoothed.data(), channels);
      float step = value_of(row_maximum(smoothed.data(), channels)) * clip / levels;
      if (step == 0.0f) step = 1.0f;
      row_scale[t] = step;
      round_row(smoothed.data(), step, levels, q + t * channels, channels);
    }
  });
}

}
