"""Which calls of torch make the host wait for the device, by their arguments.

A launch only writes down work for the device; the host waits where it asks for a number that this
work has yet to give: its value, or how many there are of it. torch's own list for cuda is in its
`test_torch.py`, `test_sync_warning`; this one is checked against that. Brief, section 6.

Left out, as rare or not to be seen: a tensor as `alpha=` or `value=`, pickling, storages, dlpack,
linear algebra that checks its result, and what cuda alone does: a copy to the device waits there
without `non_blocking=True`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

Rule = Callable[["Places", tuple, dict], str | None]  # what waits, None for nothing


class Places:
    """Which tensors are on the host.

    With an accelerator their device says it. On a CPU all tensors stand for the device's, but for
    those that were just made of numbers, by `torch.tensor`, `as_tensor` or of a numpy array: these
    are the host's until `.to(device)` sends them off. There, a device as a string is what it says,
    so `.to("cpu")` is a copy to the host; the device of another tensor is where that one is.
    """

    def __init__(self, device: str) -> None:
        self.pretends = torch.device(device).type == "cpu"
        self.host: dict[int, torch.Tensor] = {}  # by id, which is theirs while they are held here

    def on_host(self, tensor: Any) -> bool:
        """Whether its numbers can be read without a wait."""
        if not isinstance(tensor, torch.Tensor):
            return False
        return id(tensor) in self.host if self.pretends else tensor.device.type == "cpu"

    def made_on_host(self, tensor: torch.Tensor) -> bool:
        """The same, and on a CPU also for what lies in a numpy array's memory. That cannot be
        resized; a tensor that was sent to this "device" may lie there too."""
        numpys = self.pretends and not tensor.untyped_storage().resizable()
        return numpys or self.on_host(tensor)

    def note_made(self, made: torch.Tensor, args: tuple, kwargs: dict) -> None:
        """`torch.tensor` or a call like it has made a tensor, of a tensor or of numbers."""
        of_tensor = bool(args) and isinstance(args[0], torch.Tensor)
        if self.pretends and not of_tensor and kwargs.get("device") is None:
            self.host[id(made)] = made

    def is_host(self, device: Any) -> bool:
        """Whether `device`, as it was given to `.to`, is the host."""
        if self.pretends:
            return isinstance(device, str) and device.startswith("cpu")
        return device is not None and torch.device(device).type == "cpu"


def reads(what: str) -> Rule:
    """A call that reads its first argument's values."""

    def rule(places: Places, args: tuple, kwargs: dict) -> str | None:
        return None if args and places.on_host(args[0]) else what

    return rule


def takes_number(places: Places, values: Iterable[Any]) -> bool:
    """Whether a tensor of the device stands where torch needs a number, in lists too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if not places.on_host(value):
                return True
        elif isinstance(value, list | tuple) and takes_number(places, value):
            return True
    return False


def sizes(first: int) -> Rule:
    """A call whose arguments from `first` on are sizes and other numbers."""

    def rule(places: Places, args: tuple, kwargs: dict) -> str | None:
        numbers = args[first:]
        if kwargs:
            numbers += tuple(v for name, v in kwargs.items() if name not in ("out", "input"))
        return "a tensor as a size or a number" if takes_number(places, numbers) else None

    return rule


def index(places: Places, args: tuple, kwargs: dict) -> str | None:
    """x[...]: a mask asks how many it chooses, a slice or a tensor without dimensions where."""
    found = args[1]
    if type(found) is int:
        return None
    for part in found if isinstance(found, tuple | list) else (found,):
        if isinstance(part, torch.Tensor):
            masks = part.dtype in (torch.bool, torch.uint8)
            if (masks or part.dim() == 0) and not places.on_host(part):
                return f"indexing by a {'boolean mask' if masks else 'tensor without dimensions'}"
        elif isinstance(part, slice):
            if takes_number(places, (part.start, part.stop, part.step)):
                return "a slice by a tensor"
        elif isinstance(part, list | tuple | np.ndarray):
            if any(isinstance(one, bool | np.bool_) for one in part):
                return "indexing by a boolean mask"
            if takes_number(places, part):
                return "a list of tensors as an index"
    return None


def put(places: Places, args: tuple, kwargs: dict) -> str | None:
    """x[...] = value: a number goes where a mask is True without counting them."""
    masked = isinstance(args[1], torch.Tensor) and args[1].dtype == torch.bool
    if masked and isinstance(args[2], int | float):
        return None
    return index(places, args, kwargs)


def index_put(places: Places, args: tuple, kwargs: dict) -> str | None:
    return index(places, (args[0], tuple(args[1] if len(args) > 1 else kwargs["indices"])), {})


def where(places: Places, args: tuple, kwargs: dict) -> str | None:
    return "where(condition) alone" if len(args) + len(kwargs) == 1 else None


def one_hot(places: Places, args: tuple, kwargs: dict) -> str | None:
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    return "one_hot without num_classes" if classes == -1 else None


def repeat_interleave(places: Places, args: tuple, kwargs: dict) -> str | None:
    repeats = args[1] if len(args) > 1 else kwargs.get("repeats", args[0])
    if isinstance(repeats, torch.Tensor) and kwargs.get("output_size") is None:
        return "repeat_interleave without output_size"
    return None


def made_of(first: int) -> Rule:
    """torch.tensor([...]) and its like, with the data at `first`."""

    def rule(places: Places, args: tuple, kwargs: dict) -> str | None:
        data = args[first] if len(args) > first else kwargs.get("data", kwargs.get("obj"))
        if isinstance(data, torch.Tensor):
            return to_host(places, data, kwargs.get("device"))
        return "a tensor made of tensors" if takes_number(places, (data,)) else None

    return rule


def to(places: Places, args: tuple, kwargs: dict) -> str | None:
    """x.to(...): of a device, of a device and a type, of another tensor, of a type alone."""
    device = kwargs.get("device", args[1] if len(args) > 1 else None)
    if device is None or isinstance(device, torch.dtype):
        return None
    if isinstance(device, torch.Tensor):
        device = device.device
    waits = not (kwargs.get("non_blocking") or len(args) > 3 and args[3])
    what = to_host(places, args[0], device) if waits else None
    places.host.pop(id(args[0]), None)
    return what


def to_host(places: Places, tensor: torch.Tensor, device: Any) -> str | None:
    if places.is_host(device) and not places.made_on_host(tensor):
        return f".to({str(device)!r}) (a copy to the host)"
    return None


def copy(places: Places, args: tuple, kwargs: dict) -> str | None:
    """x.copy_(source): to the host, unless it need not be there when the call returns."""
    source = args[1] if len(args) > 1 else kwargs["src"]
    if kwargs.get("non_blocking") or len(args) > 2 and args[2]:
        return None
    if places.made_on_host(args[0]) and not places.made_on_host(source):
        return "copy_ to the host"
    return None


MAKERS = {torch.tensor, torch.as_tensor, torch.asarray}  # of numbers: on the host, at first

_TENSOR = {
    "item": ".item()",
    "tolist": ".tolist()",
    "cpu": ".cpu()",
    "numpy": ".numpy()",
    "__array__": "numpy's reading of a tensor",
    "__bool__": "bool() of a tensor (what `if` and `and` ask for)",
    "is_nonzero": "is_nonzero()",
    "__int__": "int() of a tensor",
    "__float__": "float() of a tensor",
    "__complex__": "complex() of a tensor",
    "__index__": "a tensor as a Python index",
    "__contains__": "`in` a tensor",
    "__repr__": "print or repr of a tensor",
    "__format__": "a tensor in a text",
}
_BOTH = (
    *("equal", "allclose", "is_nonzero", "nonzero", "argwhere"),
    *("masked_select", "unique", "unique_consecutive", "bincount"),
)
_MADE = ("zeros", "ones", "empty", "full", "arange", "linspace", "rand", "randn", "randint", "eye")
_SIZED = (
    *("view", "reshape", "expand", "repeat", "tile", "narrow", "select", "topk", "chunk", "roll"),
    *("unflatten", "new_zeros", "new_ones", "new_empty", "new_full"),
)


def _rules() -> dict[Any, Rule]:
    tensor, both = torch.Tensor, (torch, torch.Tensor)
    found: list[tuple[Any, str, Rule]] = [(tensor, n, reads(what)) for n, what in _TENSOR.items()]
    found += [(owner, name, reads(name)) for name in _BOTH for owner in both]
    found += [(torch, name, sizes(0)) for name in _MADE]
    found += [(owner, name, sizes(1)) for name in _SIZED for owner in both]
    found += [(torch, name, made_of(0)) for name in ("tensor", "as_tensor", "asarray")]
    found += [(owner, "where", where) for owner in both]
    found += [(owner, "repeat_interleave", repeat_interleave) for owner in both]
    found += [(owner, "index_put", index_put) for owner in both]
    found += [(tensor, "index_put_", index_put), (tensor, "new_tensor", made_of(1))]
    found += [(tensor, "__getitem__", index), (tensor, "__setitem__", put)]
    found += [(tensor, "to", to), (tensor, "copy_", copy)]
    found += [(torch.nn.functional, "one_hot", one_hot)]
    return {getattr(owner, name): rule for owner, name, rule in found if hasattr(owner, name)}


RULES = _rules()  # by the call
