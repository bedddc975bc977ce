"""Device drivers: what runs the kernels of an artifact."""
