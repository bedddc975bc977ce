"""Settings of the suite: hypothesis without a clock, the same examples on every CI run."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from speccc import driver
from speccc.targets.cpu.object_store import MemoryObjects

# A shared machine stalls now and then; how long an example takes says nothing about the code.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") in ("1", "true") else "local")


LONGEST = ("sycl_plan", "triton_workers", "metal_plan", "triton_step", "vulkan_target",
           "bit_identity", "fragment_plan", "top", "device_cli", "cpu_tile", "drivers_sycl",
           "numerics", "requantize", "vulkan_session", "activations")  # fmt: skip
"""Files by what they take: they are handed out first, so that no process is left with one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, in the order above."""
    rank = {f"test_{name}": n for n, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` for `golden_text`."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


@pytest.fixture(autouse=True)
def own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test builds its kernels itself: none comes from the user's cache or goes there."""
    monkeypatch.setattr(driver, "open_kernel_cache", MemoryObjects)
