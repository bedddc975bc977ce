"""Vulkan compute: fragment-level kernels as GLSL with GL_KHR_cooperative_matrix."""
