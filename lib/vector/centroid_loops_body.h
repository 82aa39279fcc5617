// No include guard: centroid_loops.cpp includes this once per instruction set, each time in a namespace of its own,
// with KVQ_SIMD_BYTES bytes in a vector. Vectors are written out: left to itself the compiler gathers over
// channels.

constexpr int kLanes = KVQ_SIMD_BYTES / 4;
using Floats __attribute__((vector_size(KVQ_SIMD_BYTES))) = float;
using Integers __attribute__((vector_size(KVQ_SIMD_BYTES))) = std::int32_t;
using FourFloats __attribute__((vector_size(16))) = float;
using FourDoubles __attribute__((vector_size(32))) = double;

/// Distances of the `kVectors` · kLanes rows from `first` on; they stay in registers.
template <int kVectors>
inline void distances_of(const PointsByChannel& points, std::int64_t first, const float* centroid, Floats* sums) {
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) sums[vector] = Floats{};
  for (int channel = 0; channel < points.width; ++channel) {
    const float* values = points.x + channel * points.stride + first;
    const float at = centroid[channel], weight = points.weights[channel];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      Floats x;
      std::memcpy(&x, values + vector * kLanes, sizeof x);
      const Floats difference = x - at;
      sums[vector] += weight * difference * difference;
    }
  }
}

inline float distance_of(const PointsByChannel& points, std::int64_t row, const float* centroid) {
  float sum = 0;
  for (int channel = 0; channel < points.width; ++channel) {
    const float difference = points.x[channel * points.stride + row] - centroid[channel];
    sum += points.weights[channel] * difference * difference;
  }
  return sum;
}

template <int kVectors>
inline void nearest_of(const PointsByChannel& points, std::int64_t first, const float* centroids, int clusters,
                       std::uint32_t* owners, float* distances) {
  Floats best[kVectors], sums[kVectors];
  Integers owner[kVectors];
  distances_of<kVectors>(points, first, centroids, best);
  for (int vector = 0; vector < kVectors; ++vector) owner[vector] = Integers{};
  for (int cluster = 1; cluster < clusters; ++cluster) {
    distances_of<kVectors>(points, first, centroids + static_cast<std::int64_t>(cluster) * points.width, sums);
    const Integers number = Integers{} + cluster;
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      const Integers nearer = sums[vector] < best[vector];
      best[vector] = nearer ? sums[vector] : best[vector];
      owner[vector] = nearer ? number : owner[vector];
    }
  }
  std::memcpy(owners + first, owner, sizeof owner);
  std::memcpy(distances + first, best, sizeof best);
}

inline void nearest(const PointsByChannel& points, const float* centroids, int clusters, std::uint32_t* owners,
                    float* distances) {
  std::int64_t row = 0;
  for (; row + 4 * kLanes <= points.rows; row += 4 * kLanes)
    nearest_of<4>(points, row, centroids, clusters, owners, distances);
  for (; row + kLanes <= points.rows; row += kLanes) nearest_of<1>(points, row, centroids, clusters, owners, distances);
  for (; row < points.rows; ++row) {
    owners[row] = 0;
    distances[row] = distance_of(points, row, centroids);
    for (int cluster = 1; cluster < clusters; ++cluster) {
      const float other = distance_of(points, row, centroids + static_cast<std::int64_t>(cluster) * points.width);
      if (other < distances[row]) distances[row] = other, owners[row] = static_cast<std::uint32_t>(cluster);
    }
  }
}

inline void lesser(const PointsByChannel& points, const float* centroid, const float* row_weights, const float* before,
                   float* out, double* block_sums) {
  constexpr int kRows = static_cast<int>(CentroidLoops::kBlock), kVectors = kRows / kLanes;
  std::int64_t first = 0;
  for (; first + kRows <= points.rows; first += kRows) {
    for (int vector = 0; vector < kVectors; vector += 4) {
      const std::int64_t row = first + vector * kLanes;
      Floats distances[4], old[4];
      distances_of<4>(points, row, centroid, distances);
      std::memcpy(old, before + row, sizeof old);
#pragma GCC unroll 4
      for (int index = 0; index < 4; ++index)
        distances[index] = distances[index] < old[index] ? distances[index] : old[index];
      std::memcpy(out + row, distances, sizeof distances);
    }
    FourDoubles low{}, high{};
    for (int row = 0; row < kRows; row += 8) {
      FourFloats weights[2], values[2];
      std::memcpy(weights, row_weights + first + row, sizeof weights);
      std::memcpy(values, out + first + row, sizeof values);
      low += __builtin_convertvector(weights[0], FourDoubles) * __builtin_convertvector(values[0], FourDoubles);
      high += __builtin_convertvector(weights[1], FourDoubles) * __builtin_convertvector(values[1], FourDoubles);
    }
    low += high;
    *block_sums++ = (low[0] + low[1]) + (low[2] + low[3]);
  }
  if (first == points.rows) return;
  double sum = 0;
  for (; first < points.rows; ++first) {
    const float now = distance_of(points, first, centroid);
    out[first] = now < before[first] ? now : before[first];
    sum += static_cast<double>(row_weights[first]) * static_cast<double>(out[first]);
  }
  *block_sums = sum;
}

inline constexpr CentroidLoops kLoops = {nearest, lesser};
