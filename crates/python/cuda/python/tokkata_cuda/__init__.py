"""Tokkata's library with kernels for NVIDIA GPUs; ``import tokkata`` takes it from here."""
