// x W^T for a few rows x: each panel of the weight comes from memory once and serves all rows from
// the second-level cache, a tile of rows at a time with all its sums in registers.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace {

// rows x vectors of sums: 24 of 32 registers, or 12 of 16
#if defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 8;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRows = 4;
#else
constexpr int kLanes = 4, kRows = 4;
#endif
constexpr int kVectors = 3;
constexpr int64_t kPanel = kLanes * kVectors;  // outputs

typedef float Vector __attribute__((vector_size(4 * kLanes)));

// out (R, width) = or += x (R, depth) panel (depth, kPanel)
template <int R>
void multiply(const float* __restrict x, int64_t inputs, const float* __restrict panel,
              int64_t depth, float* __restrict out, int64_t outputs, int64_t width, bool add) {
  const Vector* w = reinterpret_cast<const Vector*>(panel);
  Vector sums[R][kVectors] = {};
  for (int64_t k = 0; k < depth; ++k, w += kVectors)
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] += x[r * inputs + k] * w[v];
  float done[R][kPanel];
  std::memcpy(done, sums, sizeof done);
  for (int r = 0; r < R; ++r)
    for (int64_t o = 0; o < width; ++o)
      out[r * outputs + o] = add ? out[r * outputs + o] + done[r][o] : done[r][o];
}

using Multiply = decltype(&multiply<1>);

template <int... R>
Multiply for_rows(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr Multiply all[] = {multiply<R + 1>...};
  return all[rows - 1];
}

}  // namespace

extern "C" {

int64_t panel_width() { return kPanel; }

// out (rows, outputs) = x (rows, inputs) times the weight as (panels, inputs, panel_width), which
// lies at a multiple of 64 bytes. Sums run over the inputs in the blocks that oneDNN takes, so that
// the results are those of its product.
void skinny_linear(const float* x, const float* weight, float* out, int64_t rows, int64_t inputs,
                   int64_t outputs) {
  const int64_t block = rows > 1 && inputs > 1024 ? 1024 : 512;
  const int64_t tiles = (rows + kRows - 1) / kRows;
  for (int64_t o = 0; o < outputs; o += kPanel)
    for (int64_t k = 0; k < inputs; k += block)
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t first = rows * tile / tiles, last = rows * (tile + 1) / tiles;
        for_rows(last - first, std::make_integer_sequence<int, kRows>())(
            x + first * inputs + k, inputs, weight + o * inputs + k * kPanel,
            std::min(block, inputs - k), out + first * outputs + o, outputs,
            std::min(kPanel, outputs - o), k > 0);
      }
}
}
