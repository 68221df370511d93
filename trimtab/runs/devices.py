"""Where a run computes: all that differs between the processor and a GPU, in one place.

    find("cuda:1") -> Device: .torch, .move, .random_state, .look_every, ...

A run's device is a class of device ("cpu", "cuda", "mps") and, for some, a number. The class is part of a
run's name, because it rounds differently; the number is not. `KINDS` is the whole of what torch is asked, so
that a test can put a stand-in there. No line of `Cuda` and `Mps` has run on a real device (docs/devices.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from trimtab.errors import Fault, InputError, TrimtabError

LAG = 16  # steps of a GPU between looks at its losses: a look waits until all that was queued is done


class OutOfMemory(TrimtabError):
    """A device cannot hold a run; the message says what fits."""


class Device:
    """The processor, and what every device has.

    Attributes:
        kind: its class. index: its number; None: the one that is current.
        look_every: steps between looks at the losses, 1: each is known before its update.
    """

    kind: ClassVar[str] = "cpu"
    look_every: ClassVar[int] = 1

    def __init__(self, index: int | None = None):
        self.index = index

    @classmethod
    def count(cls) -> int:
        """How many torch sees here."""
        return 1

    @classmethod
    def take(cls, index: int) -> None:
        """Make a device the current one of this process."""

    @property
    def torch(self) -> torch.device:
        """As torch calls it."""
        return torch.device(self.kind) if self.index is None else torch.device(self.kind, self.index)

    @property
    def label(self) -> str:
        """What its rounding depends on, in words."""
        return self.kind

    def move(self, value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor on the device, in another type if one is given."""
        return value.to(self.torch, dtype)

    def synchronize(self) -> None:
        """Wait until all that was queued is done."""

    def memory(self) -> tuple[int, int] | None:
        """(free, all) bytes; None where torch does not say."""
        return None

    def forget_unused(self) -> None:
        """Give memory that is kept for later back to the device."""

    # -- random numbers --------------------------------------------------------------------------------------

    def seed(self, value: int) -> None:
        """Seed every generator a forward may draw from."""
        torch.manual_seed(value)  # of the processor and of all GPUs

    def own_random_state(self) -> Tensor | None:
        """State of the device's own generator; None: it is the processor's."""
        return None

    def set_own_random_state(self, state: Tensor) -> None:
        """Put the device's own generator back."""

    def random_state(self) -> dict[str, Tensor]:
        """State of every generator a forward may draw from, by class of device."""
        own = self.own_random_state()
        return {"cpu": torch.get_rng_state()} | ({} if own is None else {self.kind: own})

    def set_random_state(self, state: dict[str, Tensor]) -> None:
        """Put the generators back to what `random_state` gave."""
        torch.set_rng_state(state["cpu"])
        if self.kind in state and self.kind != "cpu":
            self.set_own_random_state(state[self.kind])

    @contextlib.contextmanager
    def forked(self) -> Iterator[None]:
        """Leave every generator as it was, whatever is drawn inside."""
        before = self.random_state()
        try:
            yield
        finally:
            self.set_random_state(before)


class Cuda(Device):
    kind = "cuda"
    look_every = LAG

    @classmethod
    def count(cls) -> int:
        return torch.cuda.device_count()

    @classmethod
    def take(cls, index: int) -> None:
        torch.cuda.set_device(index)

    @property
    def label(self) -> str:
        return torch.cuda.get_device_name(self.torch)

    def move(self, value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        if value.device.type == "cpu":  # from pinned memory the copy runs beside the computation
            value = value.pin_memory().to(self.torch, non_blocking=True)
        return value.to(self.torch, dtype)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch)

    def memory(self) -> tuple[int, int] | None:
        return torch.cuda.mem_get_info(self.torch)

    def forget_unused(self) -> None:
        torch.cuda.empty_cache()

    def own_random_state(self) -> Tensor | None:
        return torch.cuda.get_rng_state(self.torch)

    def set_own_random_state(self, state: Tensor) -> None:
        torch.cuda.set_rng_state(state, self.torch)


class Mps(Device):
    kind = "mps"
    look_every = LAG

    @classmethod
    def count(cls) -> int:
        return int(torch.backends.mps.is_available())

    def move(self, value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return value.to(self.torch, dtype, non_blocking=True)

    def synchronize(self) -> None:
        torch.mps.synchronize()

    def forget_unused(self) -> None:
        torch.mps.empty_cache()

    def own_random_state(self) -> Tensor | None:
        return torch.mps.get_rng_state()

    def set_own_random_state(self, state: Tensor) -> None:
        torch.mps.set_rng_state(state)


KINDS: dict[str, type[Device]] = {"cpu": Device, "cuda": Cuda, "mps": Mps}
PREFERRED = ("cuda", "mps", "cpu")  # what "auto" stands for: the first that is there


def settle(device: str) -> str:
    """The device that a name stands for here: "auto" is the first of cuda, mps and cpu that is there.

    >>> settle("cpu"), settle("cuda:1")
    ('cpu', 'cuda:1')
    """
    if device != "auto":
        return device
    return next(kind for kind in PREFERRED if KINDS[kind].count())


def find(device: str) -> Device:
    """The device of a name.

    Raises:
        InputError: it is not there.
    """
    device = settle(device)
    if (fault := device_fault(device)) is not None:
        raise InputError(str(fault), [fault])
    kind, _, number = device.partition(":")
    return KINDS[kind](int(number) if number else None)


def device_fault(device: str | None) -> Fault | None:
    """What is wrong with a device on this machine; None if nothing is.

    >>> device_fault("cpu"), device_fault("auto"), str(device_fault("gpu"))
    (None, None, "device: must be auto, cpu, cuda, cuda:N or mps: got 'gpu'")
    """
    kind, _, number = (device or "cpu").partition(":")
    if device == "auto":
        return None
    if kind not in KINDS or (number and (not number.isdigit() or kind != "cuda")):
        return Fault("device", "must be auto, cpu, cuda, cuda:N or mps", repr(device))
    there = KINDS[kind].count()
    if int(number or 0) >= there:
        seen = f"torch {torch.__version__} sees {there or 'no'} {kind} device{'s' if there != 1 else ''} here"
        cure = "Pass device = 'cpu', or install a torch built for your GPU"
        return Fault("device", f"got {device!r}, but {seen} (there is {', '.join(visible())}). {cure}")
    return None


def visible() -> list[str]:
    """The devices that are here.

    >>> visible()[0]
    'cpu'
    """
    found = ["cpu"]
    for kind in ("cuda", "mps"):
        count = KINDS[kind].count()
        found += [f"cuda:{i}" for i in range(count)] if kind == "cuda" else [kind] * bool(count)
    return found


def deal(slot: int, count: int, pinned: int | None = None) -> int:
    """The number of the device that the worker in a slot computes on: in turn, or the one that was named.

    >>> [deal(slot, 2) for slot in range(4)], deal(3, 2, pinned=1)
    ([0, 1, 0, 1], 1)
    """
    return slot % max(1, count) if pinned is None else pinned


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device's memory was not enough.

    >>> is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory.")), is_out_of_memory(ValueError("x"))
    (True, False)
    """
    if isinstance(error, torch.OutOfMemoryError | OutOfMemory | MemoryError):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in words or "can't allocate memory" in words)


def describe_memory(device: Device) -> str:
    """The device with its memory, for a message.

    >>> describe_memory(Device())
    'cpu'
    """
    found = device.memory()
    if found is None:
        return str(device.torch)
    free, total = (n / 2**30 for n in found)
    return f"{device.torch} ({free:.1f} of {total:.1f} GiB free)"
