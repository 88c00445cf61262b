"""Facts about torch on this machine: for which processors it is built, and whether a kernel really runs."""

from __future__ import annotations

from dataclasses import dataclass

_SIZE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchFacts:
    """torch as it was seen here.

    Attributes:
        version: its version; empty where it cannot be imported.
        build: ``CUDA 12.6``, or ``without CUDA``.
        gpu: name of the GPU that it sees; empty without one.
        arch: compute capability of that GPU, ``sm_87``.
        arch_list: architectures for which torch has kernels.
        ran: the kernel that was run, in words.
        fault: why it could not be imported, or why the kernel failed.
    """

    version: str = ""
    build: str = ""
    gpu: str = ""
    arch: str = ""
    arch_list: tuple[str, ...] = ()
    ran: str = ""
    fault: str = ""


def torch_here() -> TorchFacts:
    """Import torch and run a matrix product on the GPU, or on the CPU where it sees none."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return TorchFacts(fault=f"cannot be imported ({error})")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    device, gpu, arch, arch_list = "cpu", "", "", tuple[str, ...]()
    try:
        if torch.cuda.is_available():
            device, gpu = "cuda", torch.cuda.get_device_name()
            arch, arch_list = "sm_{}{}".format(*torch.cuda.get_device_capability()), tuple(torch.cuda.get_arch_list())
        ones = torch.ones(_SIZE, _SIZE, device=device)
        total = float((ones @ ones).sum())
        fault = "" if total == _SIZE**3 else f"a matrix product gave {total:g}, expected {_SIZE**3}"
    except RuntimeError as error:
        fault = f"a matrix product failed ({str(error).strip().splitlines()[0]})"
    ran = "" if fault else f"a matrix product ran on the {'GPU' if gpu else 'CPU'}"
    return TorchFacts(
        version=str(torch.__version__), build=build, gpu=gpu, arch=arch, arch_list=arch_list, ran=ran, fault=fault
    )
