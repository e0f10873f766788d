// Components of images of codes 0..3 and the critical regions of a component graph, in time linear
// in the pixels: raster union-find, one pass that unites, one over the edges found in it.

#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

namespace {

using Index = int32_t;

// A parent never has the larger index, so that a root is its component's first pixel.
Index find(Index* parent, Index i) {
  while (parent[i] != i) i = parent[i] = parent[parent[i]];
  return i;
}

void unite(Index* parent, Index i, Index j) {
  i = find(parent, i);
  j = find(parent, j);
  if (i < j) parent[j] = i;
  else parent[i] = j;
}

// First pixel of each pixel's component of 4-neighbours with equal codes.
void label(const uint8_t* code, Index height, Index width, Index* root) {
  for (Index y = 0, i = 0; y < height; ++y) {
    for (Index x = 0; x < width; ++x, ++i) {
      const bool left = x && code[i] == code[i - 1];
      const bool up = y && code[i] == code[i - width];
      root[i] = left ? root[i - 1] : up ? root[i - width] : i;
      if (left && up && code[i - width - 1] != code[i]) unite(root, i, i - width);
    }
  }
  for (Index i = 0; i < height * width; ++i) root[i] = root[root[i]];
}

enum { TN, FP, FN, TP };
enum { NONE, MAIN, ANTI, SOFT_MAIN, SOFT_ANTI };
constexpr Index NOTHING = -1, SEVERAL = -2;

bool is_wrong(uint8_t code) { return code == FP || code == FN; }

struct Edge { Index u, v; };

// One image: root, contracted, pred and gt are union-find forests over pixels, of which the last
// three are used at the roots of the first.
struct Graph {
  const uint8_t* code;
  Index height, width;
  const uint8_t* rule;
  std::vector<Index> root, contracted, pred, gt, background, foreground;
  std::vector<Edge> edges;  // adjacent nodes, one of them wrong
  Index regions = 0;        // critical ones of the last image

  Graph(const uint8_t* rule, Index height, Index width)
      : height(height), width(width), rule(rule) {
    for (auto* array : {&root, &contracted, &pred, &gt, &background, &foreground})
      array->resize(size_t(height) * width);
  }

  void connect(Index i, Index j, bool proper) {
    const uint8_t a = code[i], b = code[j];
    const Index u = root[i], v = root[j];
    if (a & b & 1) unite(pred.data(), u, v);
    if (a & b & 2) unite(gt.data(), u, v);
    if (!proper) return;
    if (a == b) {
      if (is_wrong(a)) unite(contracted.data(), u, v);
    } else if ((is_wrong(a) || is_wrong(b)) &&
               (edges.empty() || edges.back().u != u || edges.back().v != v)) {
      edges.push_back({u, v});
    }
  }

  void find_edges() {
    for (Index y = 0, i = 0; y < height; ++y) {
      for (Index x = 0; x < width; ++x, ++i) {
        const bool right = x + 1 < width, down = y + 1 < height;
        if (right && code[i] != code[i + 1]) connect(i, i + 1, true);
        if (down && code[i] != code[i + width]) connect(i, i + width, true);
        if (!right || !down) continue;
        const uint8_t a = code[i], b = code[i + 1], c = code[i + width], d = code[i + width + 1];
        if (a == b && c == d) continue;  // the rule says nothing here, nor for two equal columns
        const uint8_t found = rule[a | b << 2 | c << 4 | d << 6];
        if (found == MAIN || found == SOFT_MAIN) {
          if (root[i] != root[i + width + 1]) connect(i, i + width + 1, found == MAIN);
        } else if (found != NONE) {
          if (root[i + 1] != root[i + width]) connect(i + 1, i + width, found == ANTI);
        }
      }
    }
  }

  static void note(Index& slot, Index key) {
    if (slot == NOTHING) slot = key;
    else if (slot != key) slot = SEVERAL;
  }

  void see(Index node, Index neighbour) {
    const uint8_t own = code[node];
    if (!is_wrong(own)) return;
    const Index at = find(contracted.data(), node);
    if (code[neighbour] == TN) note(background[at], neighbour);
    else note(foreground[at], find((own == FP ? gt : pred).data(), neighbour));
  }

  // Lists the pixels of critical regions with the number of their region; `start` is added to
  // pixels. Returns how many pixels there are.
  int64_t critical(const uint8_t* image, int64_t start, int64_t* pixel, int64_t* region) {
    code = image;
    label(code, height, width, root.data());
    const Index pixels = height * width;
    for (Index i = 0; i < pixels; ++i) {
      if (root[i] != i) continue;
      contracted[i] = pred[i] = gt[i] = i;
      background[i] = foreground[i] = NOTHING;
    }
    edges.clear();
    find_edges();
    for (const Edge& edge : edges) {
      see(edge.u, edge.v);
      see(edge.v, edge.u);
    }
    int64_t listed = 0;
    regions = 0;
    for (Index i = 0; i < pixels; ++i) {
      if (!is_wrong(code[i])) continue;
      const Index at = find(contracted.data(), root[i]);
      if (at == i) {  // first pixel of the region
        const bool regular = background[at] >= 0 && foreground[at] >= 0;
        foreground[at] = regular ? NOTHING : regions++;
      }
      if (foreground[at] == NOTHING) continue;
      pixel[listed] = start + i;
      region[listed++] = foreground[at];
    }
    return listed;
  }
};

template <class Work>
void for_each_slice(int64_t images, int64_t threads, Work work) {
  threads = threads < images ? threads : images;
  std::vector<std::thread> pool;
  for (int64_t t = 1; t < threads; ++t)
    pool.emplace_back(work, images * t / threads, images * (t + 1) / threads);
  work(int64_t(0), images / (threads < 1 ? 1 : threads));
  for (auto& thread : pool) thread.join();
}

}  // namespace

// Pixels of critical regions in raster order, image after image, and their regions, numbered by
// first pixel. Both arrays have room for every pixel; found = {pixels, regions}.
extern "C" void critical_regions(const uint8_t* codes, const uint8_t* rule, int64_t* pixel,
                                 int64_t* region, int64_t* found, int64_t images, int64_t height,
                                 int64_t width, int64_t threads) {
  const int64_t size = height * width;
  std::vector<int64_t> pixels(images), regions(images);
  for_each_slice(images, threads, [&](int64_t first, int64_t last) {
    Graph graph(rule, height, width);
    for (int64_t n = first; n < last; ++n) {
      const int64_t at = n * size;
      pixels[n] = graph.critical(codes + at, at, pixel + at, region + at);
      regions[n] = graph.regions;
    }
  });
  found[0] = found[1] = 0;
  for (int64_t n = 0; n < images; ++n) {
    for (int64_t i = n * size; i < n * size + pixels[n]; ++i) {
      pixel[found[0]] = pixel[i];
      region[found[0]++] = region[i] + found[1];
    }
    found[1] += regions[n];
  }
}

extern "C" int64_t label_components(const uint8_t* codes, int32_t* labels, int64_t images,
                                    int64_t height, int64_t width) {
  std::vector<Index> root(height * width), number(height * width);
  Index total = 0;
  for (int64_t n = 0; n < images; ++n) {
    label(codes, height, width, root.data());
    for (Index i = 0; i < height * width; ++i) {
      if (root[i] == i) number[i] = total++;
      labels[i] = number[root[i]];
    }
    codes += height * width;
    labels += height * width;
  }
  return total;
}
