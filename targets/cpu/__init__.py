"""The host CPU: tile programs -> TVM TensorIR -> LLVM."""
