"""The Triton target: block-level tile kernels as Triton source text."""
