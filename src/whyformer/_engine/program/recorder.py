"""Recording: every operation of a run, below autograd, as a flat list of steps.

    recorder = Recorder({"pixel_values": pixels}, constants=weights)
    with recorder:
        ...                                 the forward, its backward passes, labels, rules: whatever calls torch
    program = RecordedProgram(recorder, [slots of the results])                                             (program.py)

**What Python read.** A program is right only where Python code would have taken the same branch. Where a value that
depends on the inputs was read (`bool(x.any())`), or on weights (`scale.item()`; `scale.data` can change it unseen), the
program reads it again and raises `BranchDiffers` if it is another. Reading what cannot be compared again (numbers with
fractions, lists), random numbers, writing into inputs or weights, and tensors of unknown origin make a run unfit to
record: `Unrecordable`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whyformer._engine.program.steps import DATA_SIZED, Slot, Step, Unrecordable, aten, find_slots, map_entries
from whyformer._engine.tracing.operations import Arguments, Options
from whyformer._engine.tracing.recording import PausableMode, is_marked_constant
from whyformer._plain.private_torch import READ_NUMBER, OpOverload, schema_of, storage_of

LITERALS = {aten.lift_fresh.default, aten.lift_fresh_copy.default}  # `torch.tensor(...)`: its operand is a number
READS = {"tolist", "numpy", "__array__", "data_ptr", "__dlpack__"}  # read values without an operation


Operator = Callable[..., Any]


class BranchDiffers(Exception):
    """Python code would take another branch for these inputs than when the program was recorded."""


class Recorder(PausableMode):
    """Records the operations inside, except while it pauses (`pause`)."""

    def __init__(self, inputs: Mapping[str, Tensor], constants: Iterable[Tensor]) -> None:
        super().__init__()
        self.token = object()  # marks the tensors of this recording
        self.steps: list[Step] = []
        self.memory: list[int] = []  # slot -> the number of its memory, which views share
        self.sharing: dict[int, list[int]] = {}  # number of a memory -> its slots
        self.sizes: dict[int, int] = {}  # number of a memory -> bytes
        self.is_on_gpu = any(tensor.is_cuda for tensor in inputs.values())
        self.constants: dict[int, Tensor] = {}  # slot -> a weight, or a number
        self.live: set[int] = set()  # slots of weights: their values may change between runs
        self.weights = {storage_of(tensor): tensor for tensor in constants}  # by memory: a shadow has views of them
        self.converted: dict[int, tuple[int, Tensor]] = {}  # memory of what was computed from weights alone -> slot
        self.constant_slots: dict[int, tuple[int, Tensor]] = {}  # id of a view of a weight -> its slot
        self.dependent: set[int] = set()  # slots that depend on the inputs
        self.of_weights: set[int] = set()  # slots that were computed from weights
        self.protected: set[int] = set()  # memory that may not be written to
        self.is_paused = False
        self.reader = ReadWatch(self)
        self.inputs = {name: self.enter_input(tensor) for name, tensor in inputs.items()}  # name -> slot

    # --- slots -------------------------------------------------------------------------------------------------------

    def enter_input(self, tensor: Tensor) -> int:
        number = self.add_slot(tensor)
        self.dependent.add(number)
        self.protected.add(self.memory[number])
        return number

    def add_slot(self, tensor: Tensor, memory: int | None = None) -> int:
        number = len(self.memory)
        tensor._whyformer_slot = (self.token, number)  # type: ignore[attr-defined]
        self.memory.append(number if memory is None else memory)
        self.sharing.setdefault(self.memory[number], []).append(number)
        if memory is None:
            self.sizes[number] = tensor.untyped_storage().nbytes()
        return number

    def slot_of(self, tensor: Tensor) -> int | None:
        token, number = getattr(tensor, "_whyformer_slot", (None, -1))
        return number if token is self.token else None

    def take(self, tensor: Tensor, *, is_literal: bool) -> Slot:
        """The slot of an operand; a weight or a number becomes a constant."""
        number = self.slot_of(tensor)
        if number is None and id(tensor) in self.constant_slots:
            number = self.constant_slots[id(tensor)][0]
        if number is not None:
            return Slot(number)
        address = storage_of(tensor)
        if address in self.converted and self.converted[address][1].shape == tensor.shape:
            return Slot(self.converted[address][0])  # nn.Parameter(tensor) is another object
        is_weight = address in self.weights or is_marked_constant(tensor)
        if not is_literal and not is_weight:
            raise Unrecordable(f"a tensor of shape {list(tensor.shape)} is neither an input nor a weight")
        number = len(self.memory)
        self.memory.append(number)
        self.protected.add(number)
        self.constants[number] = tensor.detach().clone() if is_literal else tensor.detach()
        if address in self.weights:
            self.live.add(number)
        if is_weight:
            self.constant_slots[id(tensor)] = (number, tensor)
        return Slot(number)

    # --- recording ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Options | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_paused:
            return func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags and read_dropout(func, args, kwargs) != 0:
            raise Unrecordable(f"{func} draws random numbers")
        near: dict[int, int] = {}  # address -> number of the memory of each operand
        operands: list[int] = []
        is_literal = func in LITERALS

        def take(tensor: Tensor) -> Slot:
            slot = self.take(tensor, is_literal=is_literal)
            near[storage_of(tensor)] = self.memory[slot.number]
            operands.append(slot.number)
            return slot

        step = Step(func, map_entries(tuple(args), Tensor, take), map_entries(kwargs, Tensor, take), operands)
        result = func(*args, **kwargs)
        self.note(step, result, near)
        if step.depends and has_unknown_size(func, args) and isinstance(result, (Tensor, tuple)):
            step.shape = tuple((result if isinstance(result, Tensor) else result[0]).shape)
        return result

    def note(self, step: Step, result: Any, near: Mapping[int, int]) -> None:
        step.depends = any(number in self.dependent for number in step.operands)
        is_of_weights = any(number in self.live or number in self.of_weights for number in step.operands)
        if schema_of(step.function).is_mutable:
            step.writes = tuple(slot.number for slot in find_written(step.function, step.args, step.kwargs))
        for number in step.writes:
            if self.memory[number] in self.protected:
                raise Unrecordable(f"{step.function} writes into an input or a weight")
            if step.depends:
                self.dependent.update(self.sharing[self.memory[number]])
            if is_of_weights:
                self.of_weights.update(self.sharing[self.memory[number]])
        if not isinstance(result, (Tensor, tuple, list)):
            self.note_read(step, result, is_of_weights)
            return
        step.is_tuple = not isinstance(result, Tensor)
        results: Sequence[Any] = result if not isinstance(result, Tensor) else (result,)
        step.outputs = [self.enter_result(step, tensor, near) for tensor in results]
        if is_of_weights:
            self.of_weights.update(number for number in step.outputs if number is not None)
        self.steps.append(step)

    def enter_result(self, step: Step, tensor: Any, near: Mapping[int, int]) -> int | None:
        """The slot of a result: that of an operand if it is the same tensor, else a new one."""
        if tensor is None:
            return None
        if not isinstance(tensor, Tensor):
            raise Unrecordable(f"{step.function} returns {type(tensor).__name__}")
        known = self.slot_of(tensor)
        if known is not None:
            return known
        number = self.add_slot(tensor, near.get(storage_of(tensor)))
        if step.depends:
            self.dependent.add(number)
        elif self.memory[number] == number and step.operands:
            self.converted[storage_of(tensor)] = (number, tensor)
        return number

    def note_read(self, step: Step, value: bool | int | float, is_of_weights: bool) -> None:
        if not step.depends and not is_of_weights:
            return
        if step.depends and not isinstance(value, bool | int):
            raise Unrecordable("Python code reads a number with a fraction that depends on the inputs")
        if step.function not in (READ_NUMBER, aten.equal.default):
            raise Unrecordable(f"Python code reads what {step.function} returns")
        step.reads, step.is_read = value, True
        self.steps.append(step)

    # --- beginning, pausing ------------------------------------------------------------------------------------------

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Inside, nothing is recorded."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def __enter__(self) -> "Recorder":
        self.reader.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.reader.__exit__(*error)

    # --- after the run -----------------------------------------------------------------------------------------------

    def forget_tensors(self) -> None:
        """Keep nothing of the run but its steps and constants."""
        self.weights, self.converted, self.constant_slots = {}, {}, {}

    def depends(self, tensor: Tensor) -> bool:
        """Whether a tensor depends on the inputs."""
        return self.slot_of(tensor) in self.dependent

    def is_of_weights(self, tensor: Tensor) -> bool:
        """Whether a tensor is a weight, or computed from weights."""
        return self.slot_of(tensor) in self.of_weights or storage_of(tensor) in self.weights

    def require_slot(self, tensor: Tensor) -> Slot:
        """The slot of a result."""
        number = self.slot_of(tensor)
        if number is None:
            raise Unrecordable(f"a result of shape {list(tensor.shape)} was not computed while recording")
        return Slot(number)


class ReadWatch(TorchFunctionMode):
    """Refuses what reads values of the inputs past the dispatcher."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Operator, types: Sequence[type], args: Arguments = (), kwargs: Options | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and not self.recorder.is_paused:
            number = self.recorder.slot_of(args[0])
            if number is not None and number in self.recorder.dependent:
                raise Unrecordable(f"Python code reads values of the inputs with {name}()")
            if name != "data_ptr" and self.recorder.is_of_weights(args[0]):
                raise Unrecordable(f"Python code reads values of the weights with {name}()")
        return func(*args, **(kwargs or {}))


# --- what an operation does ------------------------------------------------------------------------------------------


def has_unknown_size(func: OpOverload, args: Arguments) -> bool:
    """The shape of the result depends on values: places by number have a fixed size, places by mask have not."""
    if func is aten.index.Tensor:
        return any(place is not None and place.dtype in (torch.bool, torch.uint8) for place in args[1])
    return func in DATA_SIZED


def read_dropout(func: OpOverload, args: Arguments, kwargs: Options) -> float | None:
    """The share that fused attention drops at random; None for other operations."""
    for place, argument in enumerate(schema_of(func).arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get("dropout_p", argument.default_value)
            return float(given or 0)
    return None


def find_written(func: OpOverload, args: Arguments, kwargs: Options) -> Iterator[Slot]:
    """The arguments that an operation writes into, as its schema says."""
    for place, argument in enumerate(schema_of(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from find_slots(value)
