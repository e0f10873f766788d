// Selective scan on a CPU, forward and backward, states in registers; and the causal convolution
// that goes before it.
//
// One channel at a time: h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t,  y_t = <h_t, C_t>.
// The forward keeps the state at the start of every block of `block` steps; the backward replays a
// block into a buffer that fits the first-level cache and walks back through it.
// Layouts: u, dt, y (batch, channels, length); A (channels, padded); B, C (batch, groups, length,
// padded); starts (batch, channels, blocks, states). `padded` is the state size rounded up to
// LANES * 2^k with zeros, which adds nothing to any sum.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int LANES = 8;
constexpr int MAX_BLOCK = 16;
constexpr int MAX_WIDTH = 8;
constexpr int64_t CHANNELS_PER_TASK = 32;  // fixed, so that sums do not depend on the threads

typedef float Floats __attribute__((vector_size(LANES * sizeof(float))));
typedef double Doubles __attribute__((vector_size(LANES * sizeof(double))));
typedef int32_t Ints __attribute__((vector_size(LANES * sizeof(int32_t))));

template <typename T> struct Lanes;
template <> struct Lanes<float> { typedef Floats type; };
template <> struct Lanes<double> { typedef Doubles type; };

// exp by 2^n e^r, |r| <= ln2/2, degree-6 polynomial: relative error below 2e-7.
// Arguments are held in [-87, 88]; NaN stays NaN.
inline Floats exponential(Floats x) {
    x = x < -87.0f ? (Floats{} - 87.0f) : x;
    x = x > 88.0f ? (Floats{} + 88.0f) : x;
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
    Floats shifted = x * 1.44269504088896341f + magic;
    Floats n = shifted - magic;
    Floats r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    Ints bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 127) << 23;  // the low bits of `shifted` are n
    Floats scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    return p * scale;
}

inline Doubles exponential(Doubles x) {
    for (int i = 0; i < LANES; ++i) x[i] = std::exp(x[i]);
    return x;
}

template <typename V> inline auto total(V v) {
    return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}

template <typename V, typename T> inline V load(const T* from) {
    V v;
    std::memcpy(&v, from, sizeof(v));
    return v;
}

template <typename V, typename T> inline void add_to(T* where, V v) {
    v += load<V>(where);
    std::memcpy(where, &v, sizeof(v));
}

struct Sizes {
    int64_t batch, channels, groups, length, states, block, threads;
    int64_t blocks() const { return (length + block - 1) / block; }
    int64_t tasks_per_group() const {
        return (channels / groups + CHANNELS_PER_TASK - 1) / CHANNELS_PER_TASK;
    }
};

template <typename T> struct Arrays {
    const T *u, *dt, *A, *B, *C, *initial;
    T *y, *last, *starts;
    const T *dy, *dlast;
    T *du, *ddt, *dA, *dB, *dC, *dinitial;
};

template <typename T, int K> struct Channel {
    typedef typename Lanes<T>::type V;
    static constexpr int64_t PADDED = K * LANES;

    static void read(const T* from, int64_t states, V* h) {
        T padded[PADDED] = {};
        std::memcpy(padded, from, states * sizeof(T));
        std::memcpy(h, padded, sizeof(padded));
    }

    static void write(const V* h, int64_t states, T* where) {
        T padded[PADDED];
        std::memcpy(padded, h, sizeof(padded));
        std::memcpy(where, padded, states * sizeof(T));
    }

    static void forward(const Sizes& s, const Arrays<T>& a, int64_t b, int64_t g, int64_t d) {
        const int64_t row = b * s.channels + d, group = (b * s.groups + g) * s.length * PADDED;
        const T *u = a.u + row * s.length, *dt = a.dt + row * s.length;
        T *y = a.y + row * s.length, *starts = a.starts + row * s.blocks() * s.states;
        V h[K], A[K];
        std::memcpy(A, a.A + d * PADDED, sizeof(A));
        read(a.initial + row * s.states, s.states, h);
        for (int64_t t = 0; t < s.length; ++t) {
            if (t % s.block == 0) write(h, s.states, starts + t / s.block * s.states);
            const T *B = a.B + group + t * PADDED, *C = a.C + group + t * PADDED;
            const T step = dt[t], input = step * u[t];
            V sum = {};
            for (int k = 0; k < K; ++k) {
                h[k] = exponential(step * A[k]) * h[k] + input * load<V>(B + k * LANES);
                sum += h[k] * load<V>(C + k * LANES);
            }
            y[t] = total(sum);
        }
        write(h, s.states, a.last + row * s.states);
    }

    // `partial` is this task's own (length, PADDED) slice of dB and dC.
    static void backward(const Sizes& s, const Arrays<T>& a, int64_t b, int64_t g, int64_t d,
                         int64_t partial) {
        const int64_t row = b * s.channels + d, group = (b * s.groups + g) * s.length * PADDED;
        const T *u = a.u + row * s.length, *dt = a.dt + row * s.length, *dy = a.dy + row * s.length;
        T *du = a.du + row * s.length, *ddt = a.ddt + row * s.length;
        V A[K], dA[K] = {}, carry[K], decay[MAX_BLOCK][K], h[MAX_BLOCK + 1][K];
        std::memcpy(A, a.A + d * PADDED, sizeof(A));
        read(a.dlast + row * s.states, s.states, carry);
        for (int64_t block = s.blocks() - 1; block >= 0; --block) {
            const int64_t first = block * s.block;
            const int64_t steps = std::min(s.block, s.length - first);
            read(a.starts + (row * s.blocks() + block) * s.states, s.states, h[0]);
            for (int64_t i = 0; i < steps; ++i) {
                const T step = dt[first + i], input = step * u[first + i];
                const T* B = a.B + group + (first + i) * PADDED;
                for (int k = 0; k < K; ++k) {
                    decay[i][k] = exponential(step * A[k]);
                    h[i + 1][k] = decay[i][k] * h[i][k] + input * load<V>(B + k * LANES);
                }
            }
            for (int64_t i = steps - 1; i >= 0; --i) {
                const int64_t t = first + i;
                const T step = dt[t], input = step * u[t], upstream = dy[t];
                const T *B = a.B + group + t * PADDED, *C = a.C + group + t * PADDED;
                T *dB = a.dB + partial + t * PADDED, *dC = a.dC + partial + t * PADDED;
                V along_B = {}, along_A = {};
                for (int k = 0; k < K; ++k) {
                    const V grad = carry[k] + upstream * load<V>(C + k * LANES);
                    add_to(dC + k * LANES, upstream * h[i + 1][k]);
                    add_to(dB + k * LANES, input * grad);
                    carry[k] = grad * decay[i][k];
                    const V weight = carry[k] * h[i][k];
                    along_B += grad * load<V>(B + k * LANES);
                    along_A += weight * A[k];
                    dA[k] += weight * step;
                }
                const T inner = total(along_B);
                du[t] = inner * step;
                ddt[t] = inner * u[t] + total(along_A);
            }
        }
        std::memcpy(a.dA + row * PADDED, dA, sizeof(dA));
        write(carry, s.states, a.dinitial + row * s.states);
    }
};

// Runs task(b, g, first channel, last channel, index of the task) for every slice of channels.
template <typename Task> void over_channels(const Sizes& s, const Task& task) {
    const int64_t slices = s.tasks_per_group(), width = s.channels / s.groups;
    const int64_t count = s.batch * s.groups * slices;
    std::atomic<int64_t> next{0};
    auto work = [&] {
        for (int64_t i; (i = next++) < count;) {
            const int64_t slice = i % slices, g = i / slices % s.groups, b = i / slices / s.groups;
            const int64_t first = g * width + slice * CHANNELS_PER_TASK;
            task(b, g, first, std::min(first + CHANNELS_PER_TASK, (g + 1) * width), i);
        }
    };
    std::vector<std::thread> others;
    for (int64_t i = 1; i < std::min(s.threads, count); ++i) others.emplace_back(work);
    work();
    for (auto& thread : others) thread.join();
}

template <typename T, int K> void run(const Sizes& s, const Arrays<T>& a, bool backward) {
    over_channels(s, [&](int64_t b, int64_t g, int64_t first, int64_t last, int64_t task) {
        for (int64_t d = first; d < last; ++d) {
            if (backward) Channel<T, K>::backward(s, a, b, g, d, task * s.length * K * LANES);
            else Channel<T, K>::forward(s, a, b, g, d);
        }
    });
}

template <typename T> void dispatch(const Sizes& s, const Arrays<T>& a, bool backward) {
    if (s.states <= 8) run<T, 1>(s, a, backward);
    else if (s.states <= 16) run<T, 2>(s, a, backward);
    else if (s.states <= 32) run<T, 4>(s, a, backward);
    else if (s.states <= 64) run<T, 8>(s, a, backward);
    else if (s.states <= 128) run<T, 16>(s, a, backward);
    else run<T, 32>(s, a, backward);
}

template <typename T> void scan(const int64_t* sizes, void* const* p, bool backward) {
    const Sizes s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6]};
    T* const* q = reinterpret_cast<T* const*>(p);
    Arrays<T> a{};
    a.u = q[0]; a.dt = q[1]; a.A = q[2]; a.B = q[3]; a.C = q[4]; a.starts = q[5];
    if (backward) {
        a.dy = q[6]; a.dlast = q[7]; a.du = q[8]; a.ddt = q[9];
        a.dA = q[10]; a.dB = q[11]; a.dC = q[12]; a.dinitial = q[13];
    } else {
        a.initial = q[6]; a.y = q[7]; a.last = q[8];
    }
    dispatch(s, a, backward);
}

// Causal depthwise convolution and silu. x, y (batch, channels, length); w (channels, width).
// A channel's rows are one task's, so that dw and db are summed in a fixed order.
template <typename T> struct Convolution {
    typedef typename Lanes<T>::type V;
    int64_t batch, channels, length, width, silu;
    const T *x, *w, *bias, *dy;
    T *y, *dx, *dw, *dbias;

    // history[i] = x[i - width + 1], zero before the start and after the end; pre[t] before silu.
    void before_silu(const T* row, int64_t d, T* history, T* pre) const {
        std::fill(history, history + length + width + LANES, T(0));
        std::copy(row, row + length, history + width - 1);
        for (int64_t t = 0; t < length; t += LANES) {
            V sum = V{} + bias[d];
            for (int64_t k = 0; k < width; ++k) sum += w[d * width + k] * load<V>(history + t + k);
            std::memcpy(pre + t, &sum, sizeof(sum));
        }
    }

    void forward(int64_t d, T* history, T* pre) const {
        for (int64_t b = 0; b < batch; ++b) {
            const int64_t row = (b * channels + d) * length;
            before_silu(x + row, d, history, pre);
            for (int64_t t = 0; silu && t < length; t += LANES) {
                V v = load<V>(pre + t);
                v = v / (T(1) + exponential(-v));
                std::memcpy(pre + t, &v, sizeof(v));
            }
            std::copy(pre, pre + length, y + row);
        }
    }

    void backward(int64_t d, T* history, T* pre, T* grad) const {
        V dw_sum[MAX_WIDTH] = {}, dbias_sum = {};
        for (int64_t b = 0; b < batch; ++b) {
            const int64_t row = (b * channels + d) * length;
            before_silu(x + row, d, history, pre);
            std::fill(grad, grad + length + width + 2 * LANES, T(0));
            std::copy(dy + row, dy + row + length, grad);
            for (int64_t t = 0; t < length; t += LANES) {
                V g = load<V>(grad + t);
                if (silu) {
                    const V v = load<V>(pre + t), gate = T(1) / (T(1) + exponential(-v));
                    g *= gate * (T(1) + v * (T(1) - gate));
                    std::memcpy(grad + t, &g, sizeof(g));
                }
                dbias_sum += g;
                for (int64_t k = 0; k < width; ++k) dw_sum[k] += g * load<V>(history + t + k);
            }
            for (int64_t t = 0; t < length; t += LANES) {
                V sum = {};
                for (int64_t k = 0; k < width; ++k)
                    sum += w[d * width + k] * load<V>(grad + t + width - 1 - k);
                std::memcpy(pre + t, &sum, sizeof(sum));
            }
            std::copy(pre, pre + length, dx + row);
        }
        dbias[d] = total(dbias_sum);
        for (int64_t k = 0; k < width; ++k) dw[d * width + k] = total(dw_sum[k]);
    }
};

template <typename T> void convolve(const int64_t* sizes, void* const* p, bool backward) {
    T* const* q = reinterpret_cast<T* const*>(p);
    Convolution<T> c{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], q[0], q[1], q[2]};
    if (backward) { c.dy = q[3]; c.dx = q[4]; c.dw = q[5]; c.dbias = q[6]; }
    else c.y = q[3];
    const Sizes slices{1, c.channels, 1, c.length, 0, 1, sizes[5]};
    over_channels(slices, [&](int64_t, int64_t, int64_t first, int64_t last, int64_t) {
        const int64_t room = c.length + c.width + 2 * LANES;
        std::vector<T> history(room), pre(room), grad(room);
        for (int64_t d = first; d < last; ++d) {
            if (backward) c.backward(d, history.data(), pre.data(), grad.data());
            else c.forward(d, history.data(), pre.data());
        }
    });
}

}  // namespace

extern "C" {
void conv_forward_float(const int64_t* sizes, void* const* p) { convolve<float>(sizes, p, false); }
void conv_forward_double(const int64_t* sizes, void* const* p) { convolve<double>(sizes, p, false); }
void conv_backward_float(const int64_t* sizes, void* const* p) { convolve<float>(sizes, p, true); }
void conv_backward_double(const int64_t* sizes, void* const* p) { convolve<double>(sizes, p, true); }
void scan_forward_float(const int64_t* sizes, void* const* p) { scan<float>(sizes, p, false); }
void scan_forward_double(const int64_t* sizes, void* const* p) { scan<double>(sizes, p, false); }
void scan_backward_float(const int64_t* sizes, void* const* p) { scan<float>(sizes, p, true); }
void scan_backward_double(const int64_t* sizes, void* const* p) { scan<double>(sizes, p, true); }
}
