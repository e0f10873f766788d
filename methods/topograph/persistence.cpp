// Merges of sublevel-set components of an image, by union-find in the order of its values.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace {

using Index = int32_t;

Index find(Index* parent, Index i) {
  while (parent[i] != i) i = parent[i] = parent[parent[i]];
  return i;
}

}  // namespace

// Pixels enter by (value, index) of `order`. At every merge the pixel that causes it is written to
// `at`, and for each of `count` fields the later of both components' least pixels to `dying`
// (count × pixels). Returns the number of merges.
extern "C" int64_t merges(const float* order, const float* fields, int64_t count, int64_t height,
                          int64_t width, int64_t neighbours, int32_t* at, int32_t* dying) {
  const int64_t pixels = height * width;
  std::vector<Index> sorted(pixels), parent(pixels, -1), least(pixels * count);
  std::iota(sorted.begin(), sorted.end(), 0);
  std::sort(sorted.begin(), sorted.end(), [&](Index a, Index b) {
    return order[a] != order[b] ? order[a] < order[b] : a < b;
  });
  for (int64_t k = 0; k < count; ++k) std::iota(&least[k * pixels], &least[k * pixels] + pixels, 0);
  const int down[8] = {-1, 0, 0, 1, -1, -1, 1, 1}, right[8] = {0, -1, 1, 0, -1, 1, -1, 1};
  int64_t found = 0;
  for (const Index pixel : sorted) {
    parent[pixel] = pixel;
    for (int64_t n = 0; n < neighbours; ++n) {
      const int64_t y = pixel / width + down[n], x = pixel % width + right[n];
      if (y < 0 || y >= height || x < 0 || x >= width || parent[y * width + x] < 0) continue;
      Index a = find(parent.data(), pixel), b = find(parent.data(), y * width + x);
      if (a == b) continue;
      at[found] = pixel;
      for (int64_t k = 0; k < count; ++k) {
        const float* field = fields + k * pixels;
        Index& first = least[k * pixels + a];
        Index& second = least[k * pixels + b];
        const bool later = field[first] != field[second] ? field[first] < field[second]
                                                         : first < second;
        if (!later) std::swap(first, second);
        dying[k * pixels + found] = second;
      }
      parent[b] = a;
      ++found;
    }
  }
  return found;
}
