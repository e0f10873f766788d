// The share of a row's range that loses least when rounded symmetrically, one row after another.
#pragma GCC optimize("no-trapping-math", "no-signed-zeros")  // selects instead of branches
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

// Nearest integer, ties to even, for |value| < 2^22: by the float's own rounding, which vectorises.
inline float rounded(float value) { return (value + 12582912.0f) - 12582912.0f; }

// value^power for value >= 0, relative error below 1e-6; written so that a compiler vectorises it.
inline float power_of(float value, float power) {
  uint32_t bits;
  value = value > 1e-30f ? value : 1e-30f;
  std::memcpy(&bits, &value, 4);
  const uint32_t shifted = bits - 0x3f3504f3u;  // exponent so that the mantissa is near 1
  const int32_t exponent = static_cast<int32_t>(shifted) >> 23;
  const uint32_t mantissa_bits = bits - (static_cast<uint32_t>(exponent) << 23);
  float m;
  std::memcpy(&m, &mantissa_bits, 4);
  const float t = (m - 1.0f) / (m + 1.0f), t2 = t * t;
  const float log2 = exponent + 2.885390082f * t *
      (1.0f + t2 * (0.3333333333f + t2 * (0.2f + t2 * 0.1428571429f)));
  const float exact = power * log2, y = exact > -126.0f ? exact : -126.0f;
  const float whole = rounded(y), f = y - whole;
  const float fraction = 1.0f + f * (0.6931471806f + f * (0.2402265070f + f * (0.0555041087f +
      f * (0.0096181291f + f * (0.0013333558f + f * 0.0001540353f)))));
  const uint32_t scale_bits = static_cast<uint32_t>(static_cast<int32_t>(whole) + 127) << 23;
  float scale;
  std::memcpy(&scale, &scale_bits, 4);
  return fraction * scale;
}

constexpr int kLanes = 64;

float best_share(const float* row, float high, int64_t channels, int levels, int steps,
                 float power) {
  float best = INFINITY, share = 1.0f;
  for (int i = 0; i < steps; ++i) {
    const float p = static_cast<float>(1.0 - i / 100.0);
    const float scale = p * high / levels;
    const float lowest = -levels - 1.0f, highest = levels;
    double error = 0, clipping = 0;
    for (int64_t start = 0; start < channels; start += kLanes) {
      const int lanes = static_cast<int>(std::min<int64_t>(kLanes, channels - start));
      float errors[kLanes], clipped[kLanes];
      for (int lane = 0; lane < lanes; ++lane) {
        const float w = row[start + lane];
        const float level = rounded(w / scale);
        const float kept = level < lowest ? lowest : (level > highest ? highest : level);
        errors[lane] = power_of(std::fabs(kept * scale - w), power);
        clipped[lane] = kept != level ? errors[lane] : 0.0f;
      }
      float lane_error = 0, lane_clipping = 0;
      for (int lane = 0; lane < lanes; ++lane) {
        lane_error += errors[lane];
        lane_clipping += clipped[lane];
      }
      error += lane_error;
      clipping += lane_clipping;
    }
    if (error < best) best = error, share = p;
    // What is clipped now is clipped further at every smaller share.
    if (clipping > best) break;
  }
  return share;
}

}  // namespace

extern "C" void search_shares(const float* rows, const float* high, float* shares, int64_t count,
                              int64_t channels, int levels, int steps, float power, int threads) {
  auto work = [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      shares[r] = best_share(rows + r * channels, high[r], channels, levels, steps, power);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t)
    others.emplace_back(work, count * t / threads, count * (t + 1) / threads);
  work(0, count / threads);
  for (auto& other : others) other.join();
}
