// Mel energies of frames of 512 points: 16 frames at a time, one in each lane of a vector, so that
// every intermediate value stays in the innermost cache.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int LANES = 16, POINTS = 512, HALF = POINTS / 2, BINS = HALF + 1;
typedef float Lanes __attribute__((vector_size(4 * LANES)));

struct Complex {
  Lanes re, im;
};

Complex operator+(const Complex& a, const Complex& b) { return Complex{a.re + b.re, a.im + b.im}; }
Complex operator-(const Complex& a, const Complex& b) { return Complex{a.re - b.re, a.im - b.im}; }
Complex times(const Complex& a, float c, float s) {
  return Complex{a.re * c - a.im * s, a.re * s + a.im * c};
}

struct Turns {  // cos and −sin of 2πk/512: the powers of the transform's root of unity
  float re[POINTS], im[POINTS];
  Turns() {
    for (int k = 0; k < POINTS; ++k) {
      const double angle = 2 * M_PI * k / POINTS;
      re[k] = float(std::cos(angle));
      im[k] = float(-std::sin(angle));
    }
  }
};
const Turns turns;

struct Frames {
  int64_t count, length, shift;  // the length is a multiple of LANES, at most POINTS
};

template <int W, int... K>
void swap_halves(Lanes& a, Lanes& b, std::integer_sequence<int, K...>) {
  const Lanes low = __builtin_shufflevector(a, b, (K & W ? LANES + K - W : K)...);
  b = __builtin_shufflevector(a, b, (K & W ? LANES + K : K + W)...);
  a = low;
}

// Transposes 16 × 16 values by exchanging quarters, then quarters of quarters, and so on.
template <int W>
void transpose(Lanes* square) {
  for (int i = 0; i < LANES; ++i) {
    if (i & W) continue;
    swap_halves<W>(square[i], square[i + W], std::make_integer_sequence<int, LANES>());
  }
  if constexpr (W > 1) transpose<W / 2>(square);
}

// 16 frames, one a lane: even samples are real parts, odd ones imaginary.
void load(const float* signal, const Frames& frames, Complex* z) {
  for (int64_t i = 0; i < frames.length; i += LANES) {
    Lanes square[LANES];
    for (int lane = 0; lane < LANES; ++lane)
      std::memcpy(&square[lane], signal + lane * frames.shift + i, sizeof(Lanes));
    transpose<LANES / 2>(square);
    for (int k = 0; k < LANES; ++k) (k % 2 ? z[(i + k) / 2].im : z[(i + k) / 2].re) = square[k];
  }
  for (int64_t i = frames.length / 2; i < HALF; ++i) z[i] = Complex{};
}

// One step of decimation in frequency by four over `SIZE` points.
template <int SIZE>
void split(Complex* z) {
  constexpr int QUARTER = SIZE / 4, STEP = POINTS / SIZE;
  for (int j = 0; j < QUARTER; ++j) {
    Complex &p = z[j], &q = z[j + QUARTER], &r = z[j + 2 * QUARTER], &s = z[j + 3 * QUARTER];
    const Complex a = p + r, b = p - r, c = q + s, apart = q - s;
    const Complex d{apart.im, -apart.re};
    const Complex e = b + d, f = a - c, g = b - d;
    p = a + c;
    if (j == 0) {  // all three factors are 1
      q = e, r = f, s = g;
      continue;
    }
    q = times(e, turns.re[j * STEP], turns.im[j * STEP]);
    r = times(f, turns.re[2 * j * STEP], turns.im[2 * j * STEP]);
    s = times(g, turns.re[3 * j * STEP], turns.im[3 * j * STEP]);
  }
}

// Complex transform in place, each quarter to its end before the next, so that it stays in the
// innermost cache; the result at place p belongs to the frequency whose base-4 digits are those of
// p in reverse.
template <int SIZE = HALF>
void transform(Complex* z) {
  split<SIZE>(z);
  if constexpr (SIZE > 4)
    for (int quarter = 0; quarter < 4; ++quarter) transform<SIZE / 4>(z + quarter * SIZE / 4);
}

int place(int frequency) {
  return (frequency & 3) << 6 | (frequency & 12) << 2 | (frequency & 48) >> 2 | frequency >> 6;
}

// |X|² of the 512 real samples from the transform of their 256 pairs.
void power_spectrum(const Complex* z, Lanes* power) {
  for (int k = 0; k <= HALF / 2; ++k) {
    const int a = place(k), b = place((HALF - k) % HALF);
    const float c = turns.re[k], s = turns.im[k];
    const Lanes er = z[a].re + z[b].re, ei = z[a].im - z[b].im;
    const Lanes odd_r = z[a].im + z[b].im, odd_i = z[b].re - z[a].re;
    const Lanes wr = odd_r * c - odd_i * s, wi = odd_r * s + odd_i * c;
    power[k] = (er + wr) * (er + wr) + (ei + wi) * (ei + wi);
    power[HALF - k] = (er - wr) * (er - wr) + (ei - wi) * (ei - wi);
  }
}

struct Band {  // the bins where a filter is not zero
  int first = BINS, last = 0;
};

std::vector<Band> find_bands(const float* filters, int64_t count) {
  std::vector<Band> bands(count);
  for (int k = 0; k < BINS; ++k) {
    for (int64_t f = 0; f < count; ++f) {
      if (filters[k * count + f] == 0) continue;
      bands[f].first = std::min(bands[f].first, k);
      bands[f].last = k + 1;
    }
  }
  return bands;
}

// The samples from `from` on, less a share of the one before each; zeros past the signal's end.
template <class Sample>
void emphasise(const Sample* samples, int64_t length, int64_t from, float factor,
               std::vector<float>& out) {
  const int64_t end = std::clamp<int64_t>(length - from, 0, int64_t(out.size()));
  if (end > 0) {
    samples += from;
    out[0] = float(samples[0]) - (from > 0 ? factor * float(samples[-1]) : 0.0f);
    for (int64_t i = 1; i < end; ++i) out[i] = float(samples[i]) - factor * float(samples[i - 1]);
  }
  std::fill(out.begin() + end, out.end(), 0.0f);
}

// The energies of one signal's frames, (frames.count, bands).
template <class Sample>
void energies(const Sample* samples, int64_t length, const Frames& frames, const float* filters,
              const std::vector<Band>& bands, float preemphasis, float floor, float* out) {
  Complex z[HALF];
  Lanes power[BINS];
  std::vector<float> signal((LANES - 1) * frames.shift + frames.length);
  std::vector<Lanes> mel(bands.size());
  const int64_t count = int64_t(bands.size());
  for (int64_t first = 0; first < frames.count; first += LANES) {
    emphasise(samples, length, first * frames.shift, preemphasis, signal);
    load(signal.data(), frames, z);
    transform(z);
    power_spectrum(z, power);
    const int64_t used = std::min<int64_t>(frames.count - first, LANES);
    for (int64_t f = 0; f < count; ++f) {
      Lanes even = {}, odd = {};  // two sums: a single one would wait for each addition
      int k = bands[f].first;
      for (; k + 1 < bands[f].last; k += 2) {
        even += filters[k * count + f] * power[k];
        odd += filters[(k + 1) * count + f] * power[k + 1];
      }
      if (k < bands[f].last) even += filters[k * count + f] * power[k];
      const Lanes energy = (even + odd) * (1.0f / (4 * POINTS));
      mel[f] = energy == 0 ? Lanes{} + floor : energy;
    }
    for (int64_t l = 0; l < used; ++l)
      for (int64_t f = 0; f < count; ++f) out[(first + l) * count + f] = mel[f][l];
  }
}

}  // namespace

// samples: (batch, width), float or int16; lengths: (batch); filters: (257, count);
// out: (batch, frames, count).
extern "C" void mel_energies(const void* samples, const int64_t* lengths, const float* filters,
                             float* out, int64_t is_int16, int64_t batch, int64_t width,
                             int64_t frame_count, int64_t frame_length, int64_t frame_shift,
                             int64_t count, int64_t threads, float preemphasis,
                             float floor) {
  const Frames frames{frame_count, frame_length, frame_shift};
  const std::vector<Band> bands = find_bands(filters, count);
  const int64_t parts = std::min(threads, batch);
  auto work = [&](int64_t part) {
    for (int64_t row = part; row < batch; row += parts) {
      const auto own = [&](auto* rows) {
        energies(rows + row * width, lengths[row], frames, filters, bands, preemphasis, floor,
                 out + row * frame_count * count);
      };
      if (is_int16)
        own(static_cast<const int16_t*>(samples));
      else
        own(static_cast<const float*>(samples));
    }
  };
  std::vector<std::thread> others;
  for (int64_t part = 1; part < parts; ++part) others.emplace_back(work, part);
  work(0);
  for (std::thread& other : others) other.join();
}
