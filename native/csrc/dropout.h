// Which elements dropout sets to zero. Included only by kernels.cpp, after vector.h.

typedef uint32_t vu __attribute__((vector_size(W * 4)));

// One row of the matrix, with two keys of its own.
struct DropoutRow {
  uint32_t added, mixed;
  int32_t limit;
  float factor;
};

// The keys are an output of splitmix64.
INLINE DropoutRow dropout_row(const Dropout& dropout, int64_t row) {
  uint64_t z = dropout.seed + (static_cast<uint64_t>(row) + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return {static_cast<uint32_t>(z), static_cast<uint32_t>(z >> 32), dropout.limit, dropout.factor};
}

// Factors of a vector of elements, from `column` on: zero, or that of the elements that stay. A product with them keeps NaN visible.
INLINE vf dropout_factors(const DropoutRow& row, int64_t column) {
  vu x = ((vu)iota() + static_cast<uint32_t>(column)) * 0x9E3779B9u + row.added;
  x = (x ^ (x >> 16)) * 0x7FEB352Du ^ row.mixed;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return as_float(((vi)(x ^ (x >> 16)) >= row.limit) & as_int(splat(row.factor)));
}

// Drops elements of whole vectors in place.
INLINE void drop_vectors(float* x, int64_t vectors, const DropoutRow& row, int64_t column) {
  for (int64_t j = 0; j < vectors; j++) store(x + j * W, load(x + j * W) * dropout_factors(row, column + j * W));
}

void drop(float* out, const float* x, int64_t row, int64_t rows, int64_t n, const Dropout& dropout) {
  for (int64_t r = 0; r < rows; r++, x += n, out += n) {
    const DropoutRow keys = dropout_row(dropout, row + r);
    for (int64_t j = 0; j < n; j += W) store_some(out + j, load_some(x + j, n - j) * dropout_factors(keys, j), n - j);
  }
}
