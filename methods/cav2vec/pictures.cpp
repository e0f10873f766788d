// Patches and blur on whole clips of grey or colour frames. Sums and products are rounded one by
// one, as NumPy rounds them: the values are those of the plain code.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#pragma GCC optimize("fp-contract=off")
#pragma STDC FP_CONTRACT OFF

namespace {

template <class Work>
void in_parallel(int64_t frames, int64_t threads, Work work) {
  const int64_t parts = std::min(threads, frames);
  std::vector<std::thread> others;
  for (int64_t part = 1; part < parts; ++part)
    others.emplace_back(work, frames * part / parts, frames * (part + 1) / parts);
  work(0, frames / std::max<int64_t>(parts, 1));
  for (std::thread& other : others) other.join();
}

int64_t mirrored(int64_t i, int64_t size) {  // the edge itself is not repeated
  if (i < 0) i = -i;
  return i < size ? i : 2 * (size - 1) - i;
}

// Adds to sum each of `count` values times its weight, those at equal distance together.
void blur_row(const float* const* rows, const float* taps, int reach, int64_t count, float* sum) {
  for (int64_t x = 0; x < count; ++x) sum[x] = taps[0] * rows[reach][x];
  for (int k = 1; k <= reach; ++k) {
    const float *before = rows[reach - k], *after = rows[reach + k], tap = taps[k];
    for (int64_t x = 0; x < count; ++x) sum[x] += (before[x] + after[x]) * tap;
  }
}

}  // namespace

// frames: (n, height, width) with the channels of a pixel side by side, changed in place; over: the
// patch times its opacity (rows, columns); rest: one minus the opacity (rows, columns); top, left:
// (n). Widths, columns and left count channels.
extern "C" void overlay(uint8_t* frames, const double* over, const double* rest,
                        const int64_t* top, const int64_t* left, int64_t n, int64_t height,
                        int64_t width, int64_t rows, int64_t columns, int64_t threads) {
  in_parallel(n, threads, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = std::max<int64_t>(0, -left[t]);
      const int64_t last = std::min(columns, width - left[t]);
      for (int64_t y = std::max<int64_t>(0, -top[t]); y < std::min(rows, height - top[t]); ++y) {
        uint8_t* __restrict row = frames + (t * height + top[t] + y) * width + left[t];
        const double* __restrict add = over + y * columns;
        const double* __restrict keep = rest + y * columns;
        for (int64_t x = first; x < last; ++x) row[x] = uint8_t(int(row[x] * keep[x] + add[x]));
      }
    }
  });
}

// frames, out: (n, height, width); taps: (reach + 1), from the centre outwards.
extern "C" void blur(const uint8_t* frames, uint8_t* out, const float* taps, int64_t n,
                     int64_t height, int64_t width, int64_t reach, int64_t threads) {
  in_parallel(n, threads, [=](int64_t begin, int64_t end) {
    std::vector<float> picture(height * width), down(width + 2 * reach), across(width);
    std::vector<const float*> rows(2 * reach + 1);
    for (int64_t t = begin; t < end; ++t) {
      const uint8_t* frame = frames + t * height * width;
      std::copy(frame, frame + height * width, picture.begin());
      for (int64_t y = 0; y < height; ++y) {
        for (int64_t k = -reach; k <= reach; ++k)
          rows[reach + k] = picture.data() + mirrored(y + k, height) * width;
        blur_row(rows.data(), taps, int(reach), width, down.data() + reach);
        for (int64_t k = 1; k <= reach; ++k) {
          down[reach - k] = down[reach + k];
          down[reach + width - 1 + k] = down[reach + width - 1 - k];
        }
        for (int64_t k = 0; k <= 2 * reach; ++k) rows[k] = down.data() + k;
        blur_row(rows.data(), taps, int(reach), width, across.data());
        uint8_t* target = out + (t * height + y) * width;
        for (int64_t x = 0; x < width; ++x) target[x] = uint8_t(std::nearbyint(across[x]));
      }
    }
  });
}
