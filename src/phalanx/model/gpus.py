"""GPU types as users write them and as nodes have them: forms, upgrades, shapes. The client only upper-cases and splits."""

from __future__ import annotations

from dataclasses import dataclass

ANY = "any"

# What one node of a type has, where we have to say it ourselves: A10 hosts carry 4, a GB200 tray is 4, all others are 8.
REAL_SHAPE = {"A10": 4, "GB200": 4, "GB300": 4}
DEFAULT_SHAPE = 8

# The first type is the one asked for, the others are upgrades at no other price. One gang never mixes two of them.
UPGRADES: dict[str, tuple[str, ...]] = {
    "H100": ("H100", "H200"),
    "A100": ("A100", "A100-40GB", "A100-80GB"),
    "A100-40GB": ("A100-40GB", "A100"),
    "B200+": ("B200", "B300"),
}
ALIASES = {"A10G": "A10", "ANY": ANY, "A100-40": "A100-40GB", "A100-80": "A100-80GB"}
KNOWN_TYPES = (
    "T4", "L4", "A10", "L40S", "A100", "A100-40GB", "A100-80GB", "RTX-PRO-6000",
    "H100", "H200", "B200", "B200+", "B300", "GB200", "GB300", ANY,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """One entry of a GPU preference list: `count` GPUs a node of `gpu_type`. `exact` forbids upgrades (`H100!`)."""

    gpu_type: str
    count: int = 1
    exact: bool = False

    def __str__(self) -> str:
        return f"{self.count} {self.gpu_type}{'!' if self.exact else ''}"


def parse_gpu(text: str) -> GpuChoice:
    """`"h100!:8"` -> 8 H100, exact. Raises ValueError naming the value and what is allowed."""
    name, _, count_text = text.strip().partition(":")
    count = 1
    if count_text:
        if not count_text.isdigit() or int(count_text) < 1:
            raise ValueError(f"gpu={text!r}: the count after ':' must be a positive whole number, as in 'H100:8'")
        count = int(count_text)
    exact = name.endswith("!")
    name = name.rstrip("!").upper()
    name = ALIASES.get(name, name)
    if name not in KNOWN_TYPES:
        raise ValueError(f"gpu={text!r}: unknown GPU type {name!r}; known: {', '.join(KNOWN_TYPES)}")
    return GpuChoice(name, count, exact)


def accepted_types(choice: GpuChoice) -> tuple[str, ...]:
    """The node types that satisfy a choice, best first; `(ANY,)` means every type."""
    if choice.exact:
        return (choice.gpu_type,)
    return UPGRADES.get(choice.gpu_type, (choice.gpu_type,))


def real_shape(gpu_type: str) -> int:
    """GPUs that a node of this type has in the field."""
    return REAL_SHAPE.get(gpu_type, DEFAULT_SHAPE)
