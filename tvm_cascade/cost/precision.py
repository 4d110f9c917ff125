"""Precisions for staged programs: tensor storage between kernels, and the factors of products (rfc/0020)."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.errors import UsageError

FP32, FP16, BF16, TF32 = "fp32", "fp16", "bf16", "tf32"


@dataclass(frozen=True, slots=True)
class Precision:
    """An entry in `PRECISIONS`. Kernels always compute in float32, and products are summed in float32."""

    name: str  # as `--precision` takes it
    stored: str  # type of tensors between kernels, and of the weights of products
    multiplied: str  # what products multiply: that type, or "tf32", float32 with 10 bits of fraction (`cost.tiles`)
    first_architecture: int = 0  # of NVIDIA, 80 for sm_80, whose tensor cores multiply it; 0: products are not on them
    rate: float = 1.0  # of tensor cores, as a share of that for float16

    @property
    def narrow(self) -> bool:
        """Return True if tensors between kernels take two bytes an element."""
        return self.stored != "float32"

    def on_tensor_cores(self, architecture: str) -> bool:
        """Return True if tensor cores in an architecture such as sm_90 multiply this type."""
        number = "".join(c for c in architecture.removeprefix("sm_") if c.isdigit())
        return 0 < self.first_architecture <= int(number or 0)


PRECISIONS = {
    p.name: p
    for p in (
        Precision(FP32, "float32", "float32"),
        Precision(FP16, "float16", "float16", 70),
        Precision(BF16, "bfloat16", "bfloat16", 80),
        Precision(TF32, "float32", "tf32", 80, 0.5),
    )
}


def find_precision(name: str) -> Precision:
    """Find a precision by name. Raises `UsageError` for an unknown name."""
    if name not in PRECISIONS:
        raise UsageError(f"unknown precision {name}: choose one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def require_architecture(name: str, architecture: str) -> None:
    """Raise `UsageError` if an architecture such as sm_75 has no arithmetic for a precision."""
    precision = find_precision(name)
    if precision.first_architecture and not precision.on_tensor_cores(architecture):
        raise UsageError(
            f"--precision {name} needs sm_{precision.first_architecture} or later, and this is for {architecture}: "
            "give another precision"
        )
