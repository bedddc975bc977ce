"""Fragment-level kernels as text of a C-like language: one writer, a dialect for each language."""
