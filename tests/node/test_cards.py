"""What the driver says of its cards, and which container gets which of them. No GPU is needed."""

from __future__ import annotations

import pytest

from phalanx.node import gpu_memory
from phalanx.node.cards import Cards, NoCard
from phalanx.node.gpus import Card, handover, read_card, read_cdi

# /proc/driver/nvidia/gpus/0000:01:00.0/information
INFORMATION = """Model: \t\t NVIDIA H200
IRQ:   \t\t 31
GPU UUID: \t GPU-11111111-2222-3333-4444-555555555555
Video BIOS: \t 96.00.d0.00.02
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t 0000:01:00.0
Device Minor: \t 3
GPU Firmware: \t 580.159.04
GPU Excluded:\t No
"""


def test_the_drivers_own_file_tells_model_uuid_and_device():
    assert read_card(INFORMATION) == Card(3, "NVIDIA H200", "GPU-11111111-2222-3333-4444-555555555555")


def test_a_card_that_the_driver_has_not_taken_does_not_count():
    assert read_card("Model: \t\t Unknown\nIRQ:   \t\t 0\nGPU UUID: \t GPU-????????-????-????-????-????????????\n") is None


def test_each_container_has_cards_of_its_own():
    cards = Cards(Card(minor) for minor in (2, 0, 1, 3))
    assert [card.minor for card in cards.take("7-0", 1)] == [0]
    assert [card.minor for card in cards.take("8-0", 2)] == [1, 2]
    assert cards.take("9-0", 0) == []
    with pytest.raises(NoCard, match="2 GPUs are asked for, and 1 of 4 are free"):
        cards.take("10-0", 2)
    cards.free("7-0")
    assert [card.minor for card in cards.take("10-0", 2)] == [0, 3]


def test_an_agent_that_starts_knows_the_cards_of_living_containers():
    cards = Cards([Card(0), Card(1)])
    cards.adopt("7-0", [0])
    assert [card.minor for card in cards.take("8-0", 1)] == [1]


def test_case_78_cards_that_are_given_back_twice_are_free_once():
    cards = Cards([Card(0), Card(1)])
    cards.take("7-0", 1)
    cards.free("7-0")
    cards.free("7-0")
    assert [card.minor for card in cards.take("8-0", 2)] == [0, 1]
    cards.free("7-0")       # late, of a container that has none any more
    with pytest.raises(NoCard, match="1 GPUs are asked for, and 0 of 2 are free"):
        cards.take("9-0", 1)


def test_case_78_a_card_without_its_device_node_is_handed_to_nobody():
    with pytest.raises(OSError, match="/dev/nvidia977: no such device any more"):
        handover([977])


def device(name: str, *minors: int) -> dict:
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{minor}"} for minor in minors]}}


# As nvidia-ctk writes it, shortened. Its index 0 is the card with minor 1 here.
CDI = {
    "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
    "devices": [device("0", 1), device("GPU-aaaa", 1), device("1", 0), device("GPU-bbbb", 0), device("all", 0, 1)],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm", "hostPath": "/host/dev/nvidia-uvm"}],
        "mounts": [{"hostPath": "/usr/lib/libcuda.so.580", "containerPath": "/usr/lib/libcuda.so.580", "options": ["ro"]}],
    },
}


def test_a_cdi_file_gives_the_cards_that_were_chosen_and_no_others():
    one = read_cdi(CDI, [1])
    assert one.devices == ["/dev/nvidiactl", "/host/dev/nvidia-uvm", "/dev/nvidia1"]
    assert [mount.target for mount in one.mounts] == ["/usr/lib/libcuda.so.580"]
    assert one.environment == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert read_cdi(CDI, [0, 1]).devices[2:] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert read_cdi(CDI, [2]) is None


def test_memory_in_use_is_what_is_there_beyond_what_was_there_before():
    before = {0: (600 << 20, 0)}
    assert gpu_memory._over(before, {0: (610 << 20, 0)}) == ""
    assert gpu_memory._over(before, {0: (1624 << 20, 1)}) == "GPU 0 with 1624 MiB of memory and 1 processes, before it 600 MiB and 0"
    assert gpu_memory._over(before, {0: (600 << 20, 1)}) != ""
    assert gpu_memory._over({0: (600 << 20, 1)}, {0: (600 << 20, 1)}) == ""       # somebody else's, from before
