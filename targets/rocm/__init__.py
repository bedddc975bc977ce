"""ROCm: Triton texts, built to AMDGCN assembly and hsaco."""
