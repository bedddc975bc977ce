"""Settings of the suite: hypothesis without a clock, the same examples on every CI run."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from built_once import folder_of_a_run, shared
from hypothesis import HealthCheck, settings

from speccc import driver
from speccc.targets.cpu.object_store import MemoryObjects

# A shared machine stalls now and then; how long an example takes says nothing about the code.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") in ("1", "true") else "local")


LONGEST = ("sycl_plan", "bit_identity", "sycl", "numerics", "vulkan_target", "cpu_tile",
           "device_cli", "triton_workers", "top", "triton_step", "activations", "triton_engine",
           "device_sampling", "vulkan_session", "head", "metal_plan", "fragment_plan",
           "float_dot_devices", "requantize", "attention", "tuning", "build_step")  # fmt: skip
"""Files by what they take: they are handed out first, so that no process is left with one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, in the order above."""
    rank = {f"test_{name}": n for n, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """The collector need not look again and again at thousands of tests that stay to the end."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` for `golden_text`."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


def pytest_configure(config: pytest.Config) -> None:
    """A folder for what all processes of this run build."""
    made = folder_of_a_run()
    if made is not None:
        config.add_cleanup(made.close)


@pytest.fixture(scope="session", autouse=True)
def run_kernels() -> Iterator[None]:
    """Kernels of models that many tests share are those of this run, not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "open_kernel_cache", shared)
        yield


@pytest.fixture(autouse=True)
def own_kernels() -> Iterator[None]:
    """Each test builds its kernels itself: none comes from the user's cache or goes there.

    The patch is not the test's own, which may undo what it patched.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "open_kernel_cache", MemoryObjects)
        yield


@pytest.fixture
def shared_kernels(own_kernels: None) -> Iterator[None]:
    """For tests that run models and leave the compiler as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "open_kernel_cache", shared)
        yield
