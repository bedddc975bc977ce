"""Measuring a model on this machine, alone or side by side with llama.cpp.

Each engine runs in a worker process of its own, so that neither peak memory nor thread pools mix;
the bench asks them in turn, so that neither has the quieter minute.
"""
