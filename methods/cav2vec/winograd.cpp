// 3 x 3 convolutions of stride 1, with what follows them, by Winograd's filtering F(3 x 3, 3 x 3)
// (Lavin and Gray 2016, arXiv:1509.09308): tiles of 5 x 5 pixels give 3 x 3 sums through one matrix
// product over the channels for each of the 25 places, where the sums as written take 81. Channels
// lie innermost.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16, kVectors = 4;
#else
constexpr int kLanes = 8, kVectors = 2;
#endif
constexpr int kRows = 6, kColumns = kLanes * kVectors;  // sums of a product held in registers
constexpr int kTile = 5, kSums = 3, kPlaces = kTile * kTile;
constexpr int64_t kTilesAtOnce = 96;  // a multiple of kRows; what they need stays in the cache

typedef float Lane __attribute__((vector_size(4 * kLanes), aligned(4)));

inline Lane load(const float* at) { return *reinterpret_cast<const Lane*>(at); }
inline void store(float* at, Lane value) { *reinterpret_cast<Lane*>(at) = value; }

// Interpolation at 0, 1, -1, 2 and infinity: sums = A [(B pixels B') (G weight G')] A'.
constexpr float B[kTile][kTile] = {
    {2, -1, -2, 1, 0}, {0, -2, -1, 1, 0}, {0, 2, -3, 1, 0}, {0, -1, 0, 1, 0}, {0, 2, -1, -2, 1}};
constexpr float G[kTile][3] = {{1 / 2.f, 0, 0},
                               {-1 / 2.f, -1 / 2.f, -1 / 2.f},
                               {-1 / 6.f, 1 / 6.f, -1 / 6.f},
                               {1 / 6.f, 1 / 3.f, 2 / 3.f},
                               {0, 0, 1}};
constexpr float A[kSums][kTile] = {{1, 1, 1, 1, 0}, {0, 1, -1, 2, 0}, {0, 1, 1, 4, 1}};

// out[i * to] = sum over j of matrix[i][j] in[j * from].
template <int rows, int columns, class Number>
inline void multiply(const float (&matrix)[rows][columns], const Number* in, int from, Number* out,
                     int to) {
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
    Number sum{};
#pragma GCC unroll 8
    for (int j = 0; j < columns; ++j)
      if (matrix[i][j] != 0) sum += matrix[i][j] * in[j * from];
    out[i * to] = sum;
  }
}

// out (rows, rows) = matrix in matrix', in (columns, columns).
template <int rows, int columns, class Number>
inline void transform(const float (&matrix)[rows][columns], const Number* in, Number* out) {
  Number half[rows * columns];
#pragma GCC unroll 8
  for (int j = 0; j < columns; ++j) multiply(matrix, in + j, columns, half + j, columns);
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) multiply(matrix, half + i * columns, 1, out + i * rows, 1);
}

// out (rows, kColumns of stride) = left (rows, depth) right (depth, kColumns).
void product(const float* left, const float* right, float* out, int64_t rows, int64_t depth,
             int64_t stride) {
  for (int64_t row = 0; row < rows; row += kRows) {
    Lane sums[kRows][kVectors] = {};
    for (int64_t k = 0; k < depth; ++k) {
      Lane weights[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) weights[v] = load(right + k * kColumns + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[r][v] += left[(row + r) * depth + k] * weights[v];
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v)
        store(out + (row + r) * stride + v * kLanes, sums[r][v]);
  }
}

struct Convolution {
  const float *x, *weight, *bias, *slope, *shortcut;
  float* out;
  int64_t height, width, in, channels;  // in: channels of x; channels: of out

  int64_t down() const { return (height + kSums - 1) / kSums; }
  int64_t across() const { return (width + kSums - 1) / kSums; }
  int64_t tiles() const { return down() * across(); }
  int64_t pixel(int64_t tile, int64_t y, int64_t x) const {  // y, x from the tile's first sum
    const int64_t row = tile / across() % down() * kSums + y, column = tile % across() * kSums + x;
    if (row < 0 || row >= height || column < 0 || column >= width) return -1;
    return (tile / tiles() * height + row) * width + column;
  }

  // Tile number `tile` to row `row` of each place's matrix (kTilesAtOnce, in).
  void gather(int64_t tile, int64_t row, const float* zeros, float* matrices) const {
    const float* source[kPlaces];
    for (int i = 0; i < kPlaces; ++i) {
      const int64_t at = pixel(tile, i / kTile - 1, i % kTile - 1);
      source[i] = at < 0 ? zeros : x + at * in;
    }
    for (int64_t c = 0; c < in; c += kLanes) {
      Lane pixels[kPlaces], places[kPlaces];
      for (int i = 0; i < kPlaces; ++i) pixels[i] = load(source[i] + c);
      transform(B, pixels, places);
      for (int i = 0; i < kPlaces; ++i)
        store(matrices + (i * kTilesAtOnce + row) * in + c, places[i]);
    }
  }

  // Row `row` of each place's product (kTilesAtOnce, channels) to the pixels of a tile.
  void scatter(int64_t tile, int64_t row, const float* products) const {
    for (int64_t c = 0; c < channels; c += kLanes) {
      Lane places[kPlaces], sums[kSums * kSums];
      for (int i = 0; i < kPlaces; ++i)
        places[i] = load(products + (i * kTilesAtOnce + row) * channels + c);
      transform(A, places, sums);
      for (int i = 0; i < kSums * kSums; ++i) {
        const int64_t at = pixel(tile, i / kSums, i % kSums);
        if (at < 0) continue;
        Lane value = sums[i] + load(bias + c);
        if (shortcut) value += load(shortcut + at * channels + c);
        store(out + at * channels + c, value > 0 ? value : value * load(slope + c));
      }
    }
  }

  void run(int64_t begin, int64_t end) const {
    const std::unique_ptr<float[]> matrices(new float[kPlaces * kTilesAtOnce * in]);
    const std::unique_ptr<float[]> products(new float[kPlaces * kTilesAtOnce * channels]);
    const std::vector<float> zeros(in);
    for (int64_t first = begin; first < end; first += kTilesAtOnce) {
      const int64_t count = std::min(kTilesAtOnce, end - first);
      const int64_t rows = (count + kRows - 1) / kRows * kRows;  // the last tile fills them up
      for (int64_t t = 0; t < rows; ++t)
        gather(std::min(first + t, end - 1), t, zeros.data(), matrices.get());
      for (int64_t i = 0; i < kPlaces; ++i)
        for (int64_t c = 0; c < channels; c += kColumns)
          product(matrices.get() + i * kTilesAtOnce * in, weight + (i * channels + c) * in,
                  products.get() + i * kTilesAtOnce * channels + c, rows, in, channels);
      for (int64_t t = 0; t < count; ++t) scatter(first + t, t, products.get());
    }
  }
};

}  // namespace

// How many output channels are computed together; both channel counts are multiples of it.
extern "C" int64_t columns() { return kColumns; }

// weight: (channels, in, 3, 3); packed: (25, channels / columns, in, columns).
extern "C" void pack(const float* weight, float* packed, int64_t channels, int64_t in) {
  for (int64_t k = 0; k < channels; ++k)
    for (int64_t c = 0; c < in; ++c) {
      float places[kPlaces];
      transform(G, weight + (k * in + c) * 9, places);
      for (int64_t i = 0; i < kPlaces; ++i)
        packed[(i * channels + k / kColumns * kColumns) * in + c * kColumns + k % kColumns] =
            places[i];
    }
}

// out = prelu(x * weight + bias + shortcut). x: (n, height, width, in); weight: of pack; bias,
// slope: (channels); shortcut, which may be null, and out: (n, height, width, channels).
extern "C" void convolve(const float* x, const float* weight, const float* bias,
                         const float* slope, const float* shortcut, float* out, int64_t n,
                         int64_t height, int64_t width, int64_t in, int64_t channels,
                         int64_t threads) {
  const Convolution all{x, weight, bias, slope, shortcut, out, height, width, in, channels};
  const int64_t tiles = n * all.tiles(), parts = std::max<int64_t>(1, std::min(threads, n));
  std::vector<std::thread> others;
  for (int64_t part = 1; part < parts; ++part)
    others.emplace_back(&Convolution::run, &all, tiles * part / parts, tiles * (part + 1) / parts);
  all.run(0, tiles / parts);
  for (std::thread& other : others) other.join();
}
