"""The card catalogue."""

import re

import pytest

from calculator.errors import PlanError, UnknownGpuError
from calculator.hardware import Gpu, catalogue, find, near, resolve
from calculator.render import catalogue as sentences
from calculator.units import GIB

CARDS = list(catalogue().values())

# Totals that programs printed, in GiB with two decimals, and their public address.
PRINTED = [
    ("t4-16gb", 14.56, "https://github.com/meta-llama/llama/issues/67"),
    ("v100-16gb-sxm2", 15.77, "https://github.com/meta-llama/llama/issues/918"),
    ("v100-32gb-sxm2", 31.75, "https://github.com/haotian-liu/LLaVA/issues/1152"),
    ("rtx-3080-10gb", 9.68, "https://github.com/huggingface/trl/issues/3436"),
    ("a10g-24gb", 21.99, "https://github.com/huggingface/autotrain-advanced/issues/376"),
    ("l4-24gb", 22.05, "https://github.com/pytorch/pytorch/issues/175666"),
    ("a100-40gb-sxm4", 39.39, "https://github.com/huggingface/peft/issues/1703"),
    ("a100-80gb-sxm4", 79.15, "https://github.com/YJiangcm/LTE/issues/3"),
    ("a100-80gb-sxm4", 79.35, "https://github.com/lm-sys/FastChat/issues/256"),
]

WANTED = [
    "t4-16gb", "v100-16gb-sxm2", "v100-32gb-sxm2", "rtx-2080-ti-11gb", "rtx-3090-24gb", "rtx-4090-24gb",
    "rtx-5090-32gb", "a10-24gb", "a10g-24gb", "l4-24gb", "l40s-48gb", "rtx-a6000-48gb", "rtx-pro-6000-96gb",
    "a100-40gb-sxm4", "a100-80gb-sxm4", "h100-80gb-sxm", "h100-94gb-nvl", "h200-141gb-sxm", "b200-180gb-sxm",
    "b300-288gb-sxm", "gb200-186gb", "gb10-128gb", "mi210-64gb", "mi250-64gb-gcd", "mi300x-192gb", "mi325x-256gb",
    "mi355x-288gb", "gaudi2-96gb", "gaudi3-128gb", "apple-m4-max",
]  # fmt: skip


@pytest.mark.parametrize("key", WANTED)
def test_the_cards_people_use_are_there(key: str) -> None:
    assert catalogue()[key].key == key


@pytest.mark.parametrize(("key", "printed_gib", "url"), PRINTED, ids=[f"{p[0]}-{p[1]}" for p in PRINTED])
def test_totals_are_those_that_programs_print(key: str, printed_gib: float, url: str) -> None:
    """Drivers differ by up to 0.2 GiB on one card; a marketed size would be off by more."""
    card = find(key)
    assert abs(card.total_bytes / GIB - printed_gib) <= 0.21, url
    assert card.marketed_bytes > card.total_bytes


@pytest.mark.parametrize("card", CARDS, ids=lambda c: c.key)
def test_every_card_is_plausible_and_sourced(card: Gpu) -> None:
    assert 0 < card.total_bytes <= 1.01 * card.marketed_bytes
    if not card.unified:
        assert card.total_bytes > 0.88 * card.marketed_bytes
    assert card.memory_bandwidth_bytes_per_s is not None
    assert 5e10 < card.memory_bandwidth_bytes_per_s < 3e13
    assert card.sources
    assert all(url.startswith("https://") for url in (*card.sources, *card.total_sources))
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", card.checked_on)
    assert card.total_as is None or card.total_as in catalogue()


@pytest.mark.parametrize("card", [c for c in CARDS if c.total_rule == "R1"], ids=lambda c: c.key)
def test_totals_by_the_nvidia_rule_follow_it(card: Gpu) -> None:
    """nvidia-smi total less 350 MiB and 0.25 %. Where no nvidia-smi total is recorded it is a sibling's, so the
    marketed size bounds it."""
    smi = card.nvidia_smi_bytes
    if smi is not None:
        assert abs(card.total_bytes - (smi * 0.9975 - 350 * 2**20)) < 2**20
    else:
        assert card.marketed_bytes * 0.96 < card.total_bytes + 350 * 2**20


@pytest.mark.parametrize("card", [c for c in CARDS if c.total_estimated], ids=lambda c: c.key)
def test_an_estimated_total_says_so(card: Gpu) -> None:
    said = card.assumption
    assert said is not None
    for language in ("en", "zh"):
        assert said.id in sentences(language)


def test_links_are_one_direction() -> None:
    assert find("h100-80gb-sxm").link_bytes_per_s == 450_000_000_000
    assert find("b200-180gb-sxm").link_bytes_per_s == 900_000_000_000
    pcie = find("rtx-4090-24gb").pcie_bytes_per_s
    assert pcie is not None
    assert pcie == pytest.approx(31.5e9, rel=0.01)


def test_rates_are_dense() -> None:
    """NVIDIA's H100 sheet prints 1,979 TFLOP/s of bf16 with sparsity."""
    assert find("h100-80gb-sxm").peak_dense_flops["bf16"] == pytest.approx(989.5e12, rel=0.001)


@pytest.mark.parametrize("card", CARDS, ids=lambda c: c.key)
def test_a_key_and_its_short_forms_find_it(card: Gpu) -> None:
    for name in (card.key, card.key.upper(), *card.aliases):
        assert find(name) is card


@pytest.mark.parametrize("card", CARDS, ids=lambda c: c.key)
def test_a_printed_name_finds_its_card_or_says_which_ones(card: Gpu) -> None:
    for name in card.names:
        carriers = [other for other in CARDS if plain(name) in map(plain, (*other.names, *other.aliases, other.key))]
        if carriers == [card]:
            assert find(f" {name} ") is card
        else:
            with pytest.raises(UnknownGpuError) as caught:
                find(name)
            assert caught.value.key == "gpu.ambiguous"
            assert card.key in str(caught.value.message.values["candidates"])


def test_a_family_of_cards_lists_all_of_them() -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find("A100")
    listed = str(caught.value.message.values["candidates"])
    assert "a100-40gb-pcie" in listed
    assert "a100-80gb-sxm4" in listed


def plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]|nvidia|tesla|geforce|amd|intel|radeon|graphics", "", name.lower())


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-80gb-sxm"),
        ("nvidia a100-sxm4-80gb", "a100-80gb-sxm4"),
        ("Tesla T4", "t4-16gb"),
        ("rtx 4090", "rtx-4090-24gb"),
        ("4090", "rtx-4090-24gb"),
        ("1080 Ti", "gtx-1080-ti-11gb"),
        ("Strix Halo", "strix-halo-128gb"),
        ("GeForce RTX 3090", "rtx-3090-24gb"),
        ("AMD Instinct MI300X", "mi300x-192gb"),
        ("a800-80gb", "a100-80gb-sxm4"),
        ("h100-nvl-94gb", "h100-94gb-nvl"),
    ],
)
def test_names_as_people_type_them(typed: str, key: str) -> None:
    assert find(typed).key == key


def test_an_unknown_card_is_refused_with_its_neighbours() -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find("rtx 4095")
    assert "rtx-4090-24gb" in str(caught.value.message.values["candidates"])
    assert near("") != ()
    assert near("\N{SNOWMAN}" * 1000) != ()


def test_one_name_for_two_sizes_is_not_guessed() -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find("NVIDIA GeForce RTX 3080")
    assert caught.value.key == "gpu.ambiguous"


def test_a_custom_card_is_its_capacity() -> None:
    card = resolve("custom", 20 * GIB)
    assert card.total_bytes == 20 * GIB
    assert not card.total_estimated
    with pytest.raises(PlanError) as caught:
        resolve("custom")
    assert caught.value.field == "gpu_capacity_bytes"
    with pytest.raises(PlanError):
        resolve("custom", 3)


def test_a_given_capacity_replaces_the_cards() -> None:
    whole = resolve("h100-80gb-sxm")
    part = resolve("h100-80gb-sxm", 40 * GIB)
    assert part.total_bytes == 40 * GIB
    assert part.memory_bandwidth_bytes_per_s == whole.memory_bandwidth_bytes_per_s
    assert whole.total_bytes == find("h100-80gb-sxm").total_bytes != part.total_bytes
