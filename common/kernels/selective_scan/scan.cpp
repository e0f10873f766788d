// Selective scan on a CPU, forward and backward, and the causal convolution
// that goes before it.
//
// LANES channels side by side: h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t,  y_t = <h_t, C_t>.
// The forward keeps the state at the start of every block of `block` steps; the backward replays a
// block into a buffer that fits the first-level cache and walks back through it.
// Layouts: u, dt, y (batch, channels, length); A (channels, states); B, C (batch, groups, length,
// states); starts (batch, channels, blocks, states); dB, dC (tasks, length, states).

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int LANES = 8;
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

struct Sizes {
    int64_t batch, channels, groups, length, states, block, threads;
    int64_t blocks() const { return (length + block - 1) / block; }
    int64_t tasks_per_group() const {
        return (channels / groups + CHANNELS_PER_TASK - 1) / CHANNELS_PER_TASK;
    }
};

// Working memory of one task.
template <typename V> struct Scratch {
    std::vector<V> memory;
    V *A, *h, *carry, *dA, *decay, *u, *dt, *dy, *out, *ddt, *dB, *dC;

    Scratch(const Sizes& s, bool backward) {
        const int64_t states = (backward ? s.block + 1 : 1) * s.states;
        const int64_t sums = backward ? s.length * s.states : 0;
        memory.resize(2 * states + 3 * s.states + 5 * s.block + 2 * sums);
        V* next = memory.data();
        auto take = [&next](int64_t count) { V* taken = next; next += count; return taken; };
        A = take(s.states); carry = take(s.states); dA = take(s.states);
        h = take(states); decay = take(states);
        u = take(s.block); dt = take(s.block); dy = take(s.block);
        out = take(s.block); ddt = take(s.block);
        dB = take(sums); dC = take(sums);  // vector's resize has zeroed them
    }
};

template <typename T> struct Arrays {
    const T *u, *dt, *A, *B, *C, *initial;
    T *y, *last, *starts;
    const T *dy, *dlast;
    T *du, *ddt, *dA, *dB, *dC, *dinitial;
};

// LANES neighbouring channels of one group, from channel `first`; `used` of the lanes are real. The
// others have a step of zero, so that their state stays zero and they add nothing to any sum.
template <typename T> struct Channels {
    typedef typename Lanes<T>::type V;
    const Sizes& s;
    const Arrays<T>& a;
    int64_t b, group, first, used;

    int64_t row(int64_t lane) const { return b * s.channels + first + lane; }

    // (lanes, count) at stride `stride` -> count vectors.
    void gather(const T* from, int64_t stride, int64_t count, V* where) const {
        T* out = reinterpret_cast<T*>(where);
        for (int64_t i = 0; i < count * LANES; ++i) out[i] = 0;
        for (int64_t lane = 0; lane < used; ++lane)
            for (int64_t i = 0; i < count; ++i) out[i * LANES + lane] = from[lane * stride + i];
    }

    void spread(const V* from, int64_t stride, int64_t count, T* where) const {
        const T* in = reinterpret_cast<const T*>(from);
        for (int64_t lane = 0; lane < used; ++lane)
            for (int64_t i = 0; i < count; ++i) where[lane * stride + i] = in[i * LANES + lane];
    }

    void forward(Scratch<V>& m) const {
        const int64_t N = s.states, L = s.length, at = row(0) * L;
        const T *B = a.B + group * L * N, *C = a.C + group * L * N;
        gather(a.A + first * N, N, N, m.A);
        gather(a.initial + row(0) * N, N, N, m.h);
        for (int64_t start = 0; start < L; start += s.block) {
            const int64_t steps = std::min(s.block, L - start);
            spread(m.h, s.blocks() * N, N, a.starts + (row(0) * s.blocks() + start / s.block) * N);
            gather(a.u + at + start, L, steps, m.u);
            gather(a.dt + at + start, L, steps, m.dt);
            for (int64_t i = 0; i < steps; ++i) {
                const T *B_t = B + (start + i) * N, *C_t = C + (start + i) * N;
                const V dt = m.dt[i], input = dt * m.u[i];
                V sum = {};
                for (int64_t n = 0; n < N; ++n) {
                    m.h[n] = exponential(dt * m.A[n]) * m.h[n] + input * B_t[n];
                    sum += m.h[n] * C_t[n];
                }
                m.out[i] = sum;
            }
            spread(m.out, L, steps, a.y + at + start);
        }
        spread(m.h, N, N, a.last + row(0) * N);
    }

    // dB and dC of all lanes are kept apart in m.dB and m.dC (length, states) until the task ends.
    void backward(Scratch<V>& m) const {
        const int64_t N = s.states, L = s.length, at = row(0) * L;
        const T *B = a.B + group * L * N, *C = a.C + group * L * N;
        gather(a.A + first * N, N, N, m.A);
        gather(a.dlast + row(0) * N, N, N, m.carry);
        std::fill(m.dA, m.dA + N, V{});
        for (int64_t block = s.blocks() - 1; block >= 0; --block) {
            const int64_t start = block * s.block, steps = std::min(s.block, L - start);
            gather(a.u + at + start, L, steps, m.u);
            gather(a.dt + at + start, L, steps, m.dt);
            gather(a.dy + at + start, L, steps, m.dy);
            gather(a.starts + (row(0) * s.blocks() + block) * N, s.blocks() * N, N, m.h);
            for (int64_t i = 0; i < steps; ++i) {
                const T* B_t = B + (start + i) * N;
                const V dt = m.dt[i], input = dt * m.u[i];
                V *decay = m.decay + i * N, *h = m.h + i * N;
                for (int64_t n = 0; n < N; ++n) {
                    decay[n] = exponential(dt * m.A[n]);
                    h[N + n] = decay[n] * h[n] + input * B_t[n];
                }
            }
            for (int64_t i = steps - 1; i >= 0; --i) {
                const T *B_t = B + (start + i) * N, *C_t = C + (start + i) * N;
                const V dt = m.dt[i], input = dt * m.u[i], dy = m.dy[i];
                const V *decay = m.decay + i * N, *h = m.h + i * N;
                V *dB = m.dB + (start + i) * N, *dC = m.dC + (start + i) * N;
                V along_B = {}, along_A = {};
                for (int64_t n = 0; n < N; ++n) {
                    const V grad = m.carry[n] + dy * C_t[n];
                    dC[n] += dy * h[N + n];
                    dB[n] += input * grad;
                    const V carry = grad * decay[n], weight = carry * h[n];
                    m.carry[n] = carry;
                    along_B += grad * B_t[n];
                    along_A += weight * m.A[n];
                    m.dA[n] += weight * dt;
                }
                m.out[i] = along_B * dt;
                m.ddt[i] = along_B * m.u[i] + along_A;
            }
            spread(m.out, L, steps, a.du + at + start);
            spread(m.ddt, L, steps, a.ddt + at + start);
        }
        spread(m.dA, N, N, a.dA + row(0) * N);
        spread(m.carry, N, N, a.dinitial + row(0) * N);
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

template <typename T> void run(const Sizes& s, const Arrays<T>& a, bool backward) {
    typedef typename Lanes<T>::type V;
    over_channels(s, [&](int64_t b, int64_t g, int64_t first, int64_t last, int64_t task) {
        Scratch<V> memory(s, backward);
        for (int64_t d = first; d < last; d += LANES) {
            const Channels<T> channels{s, a, b, b * s.groups + g, d, std::min<int64_t>(LANES, last - d)};
            if (backward) channels.backward(memory);
            else channels.forward(memory);
        }
        for (int64_t i = 0; backward && i < s.length * s.states; ++i) {
            a.dB[task * s.length * s.states + i] = total(memory.dB[i]);
            a.dC[task * s.length * s.states + i] = total(memory.dC[i]);
        }
    });
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
    run(s, a, backward);
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
