#ifndef TVM_CASCADE_TF32
#define TVM_CASCADE_TF32
template <int ROWS, int COLUMNS, int DEPTH, typename Sums>
__forceinline__ __device__ void tvm_cascade_tf32(Sums* sums, float* a, int a_stride, float* b, int b_stride) {
  namespace wmma = nvcuda::wmma;
  wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> left[ROWS];
  wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> right[COLUMNS];
#pragma unroll
  for (int k = 0; k < DEPTH; ++k) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      wmma::load_matrix_sync(left[i], a + i * 16 * a_stride + k * 8, a_stride);
#pragma unroll
      for (int e = 0; e < left[i].num_elements; ++e) left[i].x[e] = wmma::__float_to_tf32(left[i].x[e]);
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
      wmma::load_matrix_sync(right[j], b + j * 16 * b_stride + k * 8, b_stride);
#pragma unroll
      for (int e = 0; e < right[j].num_elements; ++e) right[j].x[e] = wmma::__float_to_tf32(right[j].x[e]);
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j)
        wmma::mma_sync(sums[i * COLUMNS + j], left[i], right[j], sums[i * COLUMNS + j]);
  }
}
#endif
