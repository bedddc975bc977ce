"""Device profiles and target names: every figure has a source, every name leads somewhere."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import pytest

from speccc.emit import profile_document
from speccc.errors import UnsupportedError
from speccc.ir.types import F16, F32, I8, I32, U8
from speccc.targets import registry
from speccc.targets.devices import ARCHS, DEFAULTS, DEVICES, PROFILES, profile, profile_names
from speccc.targets.devices.profile import Arch, Device, Fact, Matrix, Profile

WANTED = set(
    re.findall(
        r"\S+",
        """
cuda:sm_80 cuda:sm_86 cuda:sm_89 cuda:sm_90 cuda:sm_100 cuda:sm_103 cuda:sm_120
cuda:rtx3090 cuda:rtx4090 cuda:rtx5090 cuda:rtxpro6000 cuda:h100 cuda:h200 cuda:b200 cuda:b300
rocm:gfx906 rocm:gfx942 rocm:gfx950 rocm:gfx1100 rocm:gfx1151 rocm:gfx1201
rocm:mi50 rocm:mi300x rocm:mi355x rocm:rx7900xtx rocm:rx9070xt rocm:strixhalo
vulkan:rdna3 vulkan:rdna3.5 vulkan:rdna4 vulkan:lavapipe vulkan:rx7900xtx
vulkan:turing vulkan:ampere vulkan:ada vulkan:blackwell vulkan:rtx3090 vulkan:rtx4090 vulkan:rtx5090
vulkan:rtxpro6000 vulkan:alchemist vulkan:xe2 vulkan:a770 vulkan:b580 vulkan:b70
sycl:bmg sycl:pvc sycl:alchemist sycl:b580 sycl:b70 sycl:a770 sycl:max1550
metal:m4 metal:m4pro metal:m4max
""",
    )
)
SOURCE = re.compile(r"https://\S+|asked of \S+ \S+: \S+")


def facts(record: Arch | Device) -> Iterator[tuple[str, Fact[object]]]:
    """Every figure of a record with its field's name."""
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Fact):
            yield field.name, value
    if isinstance(record, Device):
        yield from record.rates.items()


@pytest.mark.parametrize("name", [*ARCHS, *DEVICES])
def test_every_figure_is_positive_and_has_a_source(name: str) -> None:
    record = ARCHS.get(name) or DEVICES[name]
    found = dict(facts(record))
    for field, fact in found.items():
        assert SOURCE.match(fact.source), field
        if not isinstance(fact.value, bool | tuple):
            assert isinstance(fact.value, int | float), field
            assert fact.value > 0, field
    assert found, "a record without a single fact"


def test_figures_are_in_their_units() -> None:
    """GB/s, bytes and TOPS: a figure in other units would be off by a thousand."""
    for device in DEVICES.values():
        assert device.bandwidth is None or 100 <= device.bandwidth.value <= 10_000
        assert device.memory is None or 1 << 33 <= device.memory.value <= 1 << 39
        assert device.cache is None or 1 << 20 <= device.cache.value <= 1 << 29
        assert all(10 <= rate.value <= 20_000 for rate in device.rates.values())


def test_what_no_maker_says_is_marked() -> None:
    """Figures taken from articles and siblings, which a user should know for what they are."""
    marked = {
        f"{name}.{field}"
        for name, record in (*ARCHS.items(), *DEVICES.items())
        for field, fact in facts(record)
        if fact.estimated
    }
    assert marked == {
        "vulkan:alchemist.subgroup", "vulkan:xe2.subgroup", "vulkan:xe2.matrix",
        "b580.f16", "b580.bf16", "max1550.i8", "max1550.f16", "max1550.bf16",
        "b70.bandwidth", "b70.memory", "b70.units", "b70.i8", "b70.f16", "b70.bf16",
        "a770.bandwidth", "a770.memory", "a770.units", "a770.i8", "a770.f16", "a770.bf16",
        "b200.i8", "b300.memory", "b300.f16", "b300.bf16", "b300.fp8", "b300.fp4", "b300.i8",
        "rtxpro6000.f16", "rtxpro6000.bf16", "rtxpro6000.fp8", "rtxpro6000.i8", "rtxpro6000.fp4",
        "mi355x.i8", "mi50.f16", "mi50.i8", "rx7900xtx.i8", "strixhalo.f16", "strixhalo.i8",
    }  # fmt: skip
    assert profile_document(profile("vulkan:lavapipe"))["dot4"]["value"] is False  # type: ignore[index, call-overload]
    assert profile_document(profile("vulkan:xe2"))["matrix"]["estimated"]  # type: ignore[index, call-overload]


def test_all_wanted_targets_have_a_profile() -> None:
    assert set(profile_names()) >= WANTED
    assert len(profile_names()) == len(PROFILES)
    assert all(profile(n).name == n for n in profile_names())
    assert set(registry.MODULES) == set(DEFAULTS) == {p.backend for p in PROFILES.values()}


def test_a_bare_backend_stands_for_its_default() -> None:
    for backend, name in DEFAULTS.items():
        assert profile(backend) is profile(f"{backend}:{name}")
        assert registry.default(backend) == f"{backend}:{name}"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cuda:rtx409", "did you mean cuda:rtx4090?"),
        ("cuda:4090", "did you mean cuda:rtx4090?"),
        ("CUDA:SM_90", "did you mean cuda:sm_90?"),
        (" sycl:bmg", "did you mean sycl:bmg?"),
        ("rtx4090", "did you mean cuda:rtx4090 or vulkan:rtx4090?"),
        ("mi300", "did you mean rocm:mi300x?"),
        ("sm_9", "did you mean cuda:sm_90?"),
        ("gfx", "did you mean rocm:gfx906 or rocm:gfx942 or rocm:gfx950?"),
        ("cuda:", "choose one of cuda:sm_80, "),
        (":", "backends are cuda"),
        ("90", "backends are cuda"),
        ("rocm:nothing", "choose one of rocm:gfx906, "),
        ("opencl:x", "backends are cuda, rocm, vulkan, sycl, metal"),
        ("", "backends are cuda"),
    ],
)
def test_an_unknown_name_is_refused_with_a_mend(name: str, says: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(says)):
        profile(name)


def test_a_product_has_its_architecture() -> None:
    card = profile("vulkan:rx7900xtx")
    assert card.arch is profile("vulkan:rdna3").arch
    assert card.device is profile("rocm:rx7900xtx").device
    assert profile("rocm:rx7900xtx").arch is ARCHS["rocm:gfx1100"]


def test_matrix_instructions_by_type() -> None:
    assert [str(s) for s in profile("vulkan:lavapipe").matrix(I8, I8, I32)] == ["i8*i8->i32 8x8x8"]
    assert [(s.m, s.n, s.k) for s in profile("sycl:bmg").matrix(U8, I8, I32)] == [(8, 16, 32)]
    assert profile("metal:m4").matrix(I8, I8, I32) == ()
    assert profile("metal:m4").matrix(F16, F16, F32) != ()
    assert profile("rocm:gfx906").matrix(I8, I8, I32) == ()
    assert Profile(Arch("x", "y")).matrix(I8, I8, I32) == ()


def test_what_the_fragment_level_has_no_type_for_is_still_listed() -> None:
    scaled = Matrix("e2m1", "e2m1", "f32", 16, 8, 64, scale=16)
    assert scaled.mma() is None
    assert str(scaled) == "e2m1*e2m1->f32 16x8x64 scaled by 16"
    assert str(Matrix("i8", "i8", "i32", 8, 16, 32, least_m=1)) == "i8*i8->i32 1..8x16x32"
    assert Matrix("i8", "i8", "i32", 16, 8, 32, scale=32).mma() is None


def test_a_backend_without_code_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.MODULES, "metal", "speccc.targets.absent.target")
    assert "metal" not in registry.backends()
    assert not any(n.startswith("metal:") for n in registry.target_names())
    with pytest.raises(UnsupportedError, match="metal:m4: this version generates no code"):
        registry.target("metal:m4")


@pytest.mark.parametrize("backend", registry.backends())
def test_every_target_there_is_code_for_is_made(backend: str) -> None:
    for name in registry.target_names():
        if name.startswith(f"{backend}:"):
            made = registry.target(name)
            assert made.name == name
            assert made.profile is profile(name)
            assert list(made.stages())
            assert made.fingerprint()
