"""Metal: fragment-level kernels as MSL with simdgroup matrices."""
