// Matrix products in AMX tiles of 16 rows of 16 words. Included only by bf16.cpp and int8.cpp, after product.h, where the compiler may
// use AMX. TILE_DOT is the instruction that multiplies two tiles: a macro, because it takes the tiles' numbers as literals.
//
// Rows of x are copied to whole tiles first, with zeros around them, so that every tile has the same shape. That costs little beside
// a product, and also turns an x that is stored across its rows.

constexpr int64_t kEdge = 16, kTileWords = kEdge * kEdge;

// Rows and depth of the tiles of x that are copied at once. Deeper sums are stored and continued.
constexpr int64_t kRowsAtOnce = 96, kDepthAtOnce = 384;

// With fewer rows, most of a tile would be zeros.
constexpr int64_t kFewestRows = 8;

struct TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  TileShapes() {
    for (int i = 0; i < 8; i++) {
      row_bytes[i] = kEdge * sizeof(float);
      rows[i] = kEdge;
    }
  }
};

// Adds the products of tiles 4 and, if R is 2, 5 with tiles 6 and 7 to tiles 0 and 1, and 2 and 3.
template <int R>
INLINE void add_tiles() {
  TILE_DOT(0, 4, 6);
  TILE_DOT(1, 4, 7);
  if constexpr (R == 2) {
    TILE_DOT(2, 5, 6);
    TILE_DOT(3, 5, 7);
  }
}

// Copies `rows` rows of x and `depth` words from each to tiles, those of the same rows one after another.
template <bool Turned>
void copy_to_tiles(float* tiles, const float* x, int64_t stride, int64_t rows, int64_t depth) {
  for (int64_t row = 0; row < rows; row += kEdge)
    for (int64_t k = 0; k < depth; k += kEdge, tiles += kTileWords) {
      const int64_t lines = Turned ? depth - k : rows - row, left = Turned ? rows - row : depth - k;
      const float* from = x + (Turned ? k * stride + row : row * stride + k);
      alignas(64) float across[kTileWords];
      float* to = Turned ? across : tiles;
      for (int64_t i = 0; i < kEdge; i++) store(to + i * kEdge, i < lines ? load_some(from + i * stride, left) : vf{});
      if constexpr (Turned) transpose_block(tiles, kEdge, across, kEdge, kEdge);
    }
}

// A block of sums on its way from tiles to the result.
struct Sums {
  alignas(64) float tiles[4][kTileWords];
  Columns columns = {};
  int64_t row = 0, rows = 0;
};

// R rows of tiles times two columns of tiles.
template <class Dot, int R>
INLINE void tile_block(const Dot& dot, const Product& p, const float* x, Sums& sums) {
  const Columns& c = sums.columns;
  const float* out = p.out + sums.row * p.out_stride + c.first;
  // the result is written after the next block's products
  for (int64_t r = 0; r < sums.rows; r++)
    for (int v = 0; v < 2; v++) __builtin_prefetch(out + r * p.out_stride + v * W, 1);
  if (c.resumes) {
    for (int64_t r = 0; r < R * kEdge; r++)
      for (int v = 0; v < 2; v++) {
        const int64_t n = r < sums.rows ? c.count - v * W : 0;
        store(sums.tiles[r / kEdge * 2 + v] + r % kEdge * W, (vf)dot.resume(out + r * p.out_stride + v * W, n));
      }
    _tile_loadd(0, sums.tiles[0], 64);
    _tile_loadd(1, sums.tiles[1], 64);
    if constexpr (R == 2) {
      _tile_loadd(2, sums.tiles[2], 64);
      _tile_loadd(3, sums.tiles[3], 64);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (R == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  const int64_t tiles = round_up(c.depth, kEdge) / kEdge, bytes = c.stride * static_cast<int64_t>(sizeof(float));
  for (int64_t k = 0; k < tiles; k++) {
    _tile_loadd(6, c.data + k * kEdge * c.stride, bytes);
    _tile_loadd(7, c.data + k * kEdge * c.stride + kEdge, bytes);
    _tile_loadd(4, x + k * kTileWords, 64);
    if constexpr (R == 2) _tile_loadd(5, x + (tiles + k) * kTileWords, 64);
    add_tiles<R>();
  }
  _tile_stored(0, sums.tiles[0], 64);
  _tile_stored(1, sums.tiles[1], 64);
  if constexpr (R == 2) {
    _tile_stored(2, sums.tiles[2], 64);
    _tile_stored(3, sums.tiles[3], 64);
  }
}

template <class Dot>
INLINE void finish_sums(const Dot& dot, const Product& p, const Sums& sums) {
  const Columns& c = sums.columns;
  for (int v = 0; v < 2; v++) {
    const int64_t n = c.count - v * W;
    const auto columns = dot.of_columns(c.first + v * W, n);
    for (int64_t r = 0; r < sums.rows; r++) {
      const auto sum = (typename Dot::Sum)load(sums.tiles[r / kEdge * 2 + v] + r % kEdge * W);
      float* to = p.out + (sums.row + r) * p.out_stride + c.first + v * W;
      if (c.ends)
        dot.finish(to, sums.row + r, columns, sum, n);
      else
        dot.pause(to, sum, n);
    }
  }
}

template <class Dot, bool Turned>
void multiply_tiles_as(const Dot& dot, const Product& p, int64_t first, int64_t last) {
  alignas(64) float tiles[kRowsAtOnce * kDepthAtOnce], padded[kDepthAtOnce * 2 * W];
  // a block is finished while the next one is multiplied
  Sums sums[2];
  int turn = 0;
  for (int64_t row = 0; row < p.rows; row += kRowsAtOnce)
    for (int64_t k = 0; k < p.depth; k += kDepthAtOnce) {
      const int64_t rows = p.rows - row < kRowsAtOnce ? p.rows - row : kRowsAtOnce;
      const int64_t depth = p.depth - k < kDepthAtOnce ? p.depth - k : kDepthAtOnce, whole = round_up(depth, kEdge);
      copy_to_tiles<Turned>(tiles, p.x + (Turned ? k * p.x_stride + row : row * p.x_stride + k), p.x_stride, rows, depth);
      for (int64_t panel = first; panel < last; panel++) {
        const int64_t column = panel * kPanel;
        Columns c{p.matrix + panel * p.panel_step + k * p.matrix_stride, p.matrix_stride, depth, column, p.width - column, 0,
                  p.add || k > 0, k + depth == p.depth};
        const bool is_narrow = c.count < 2 * W && p.panel_step == kPanel;  // rows without padding
        if (is_narrow || depth < whole) {
          for (int64_t d = 0; d < whole; d++)
            for (int v = 0; v < 2; v++)
              store(padded + (2 * d + v) * W,
                    d < depth ? load_some(c.data + d * c.stride + v * W, is_narrow ? c.count - v * W : W) : vf{});
          c.data = padded;
          c.stride = 2 * W;
        }
        for (int64_t r = 0; r < rows; r += 2 * kEdge) {
          Sums& now = sums[turn];
          turn = !turn;
          now.columns = c;
          now.row = row + r;
          now.rows = rows - r < 2 * kEdge ? rows - r : 2 * kEdge;
          if (now.rows > kEdge)
            tile_block<Dot, 2>(dot, p, tiles + r * whole, now);
          else
            tile_block<Dot, 1>(dot, p, tiles + r * whole, now);
          finish_sums(dot, p, sums[turn]);
          sums[turn].rows = 0;
        }
      }
      finish_sums(dot, p, sums[!turn]);
      sums[!turn].rows = 0;
    }
}

// Computes the columns of panels `first` to `last`, exclusive.
template <class Dot>
void multiply_tiles(const Dot& dot, const Product& p, int64_t first, int64_t last) {
  const TileShapes shapes;
  _tile_loadconfig(&shapes);
  if (p.turned)
    multiply_tiles_as<Dot, true>(dot, p, first, last);
  else
    multiply_tiles_as<Dot, false>(dot, p, first, last);
  _tile_release();
}
