#pragma once
// How fast a device multiplies matrices: what the estimates of plans rest on.

#include <kvq/model/model.h>

namespace kvq {

/// Floating-point operations per second of a matrix product of the size that small models' layers have, measured now
/// (some milliseconds), with the number of threads that is set; on a GPU of the size that fills it.
double measured_flops(Dtype dtype, Device device = Device::Cpu);

}  // namespace kvq
