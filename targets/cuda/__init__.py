"""CUDA: Triton texts, built to PTX and cubins."""
