"""SYCL for Intel GPUs: fragment-level kernels as free functions, matrices as joint_matrix."""
