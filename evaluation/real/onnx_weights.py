"""Reads weights out of ONNX graphs: dequantised, and named by the module that uses them.

Exporters keep the names of biases and norms, and lose those of matrices ("onnx::MatMul_697"). The node that multiplies
with a matrix still carries its module's path in its own name.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper

USES = ("MatMul", "MatMulInteger", "Gemm", "Gather", "Conv", "ConvInteger")


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Float32 tensors by the names that the PyTorch modules have."""
    nodes = list(list_nodes(onnx.load(path).graph))
    values = collect_constants(path, nodes)
    makers = {output: node for node in nodes for output in node.output}
    weights = {}
    for name, array in values.items():
        if re.search(r"\.(weight|bias)$", clean(name)) and array.dtype == np.float32:
            weights[clean(name)] = array
    for node in nodes:
        if node.op_type in USES:
            weights |= read_matrix(node, values, makers)
    return {name: torch.from_numpy(np.array(array, dtype=np.float32, order="C")) for name, array in weights.items()}


def list_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the branches inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from list_nodes(attribute.g)


def collect_constants(path: Path, nodes: list[onnx.NodeProto]) -> dict[str, np.ndarray]:
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    for node in nodes:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            values.setdefault(node.output[0], numpy_helper.to_array(node.attribute[0].t))
    return values


def clean(name: str) -> str:
    return re.sub(r"_merged_\d+$", "", name)


def read_matrix(
    node: onnx.NodeProto, values: dict[str, np.ndarray], makers: dict[str, onnx.NodeProto]
) -> dict[str, np.ndarray]:
    """{module + ".weight": matrix} if the node uses a constant matrix, in PyTorch's orientation."""
    module = re.sub(r"_quant$", "", node.name).strip("/").rpartition("/")[0].replace("/", ".")
    for name in list(node.input[1::-1]):
        array = resolve(name, values, makers)
        if array is None or array.ndim < 2 or array.size <= 64:
            continue
        kept = node.op_type in ("Gather", "Conv", "ConvInteger") or any(
            attribute.name == "transB" and attribute.i for attribute in node.attribute
        )
        return {f"{module}.weight": array if kept else array.T}
    return {}


def resolve(name: str, values: dict[str, np.ndarray], makers: dict[str, onnx.NodeProto]) -> np.ndarray | None:
    """The float array behind a name, through dequantising, casting and transposing; None if it is computed."""
    if name in values:
        return dequantise_initializer(name, values)
    node = makers.get(name)
    if node is None:
        return None
    if node.op_type == "DequantizeLinear":
        integers, scale, *zero = (values.get(name) for name in node.input)
        return None if integers is None else dequantise(integers, scale, zero[0] if zero else None)
    if node.op_type in ("Identity", "Cast", "Transpose"):
        array = resolve(node.input[0], values, makers)
        return array.T if array is not None and node.op_type == "Transpose" else array
    return None


def dequantise_initializer(name: str, values: dict[str, np.ndarray]) -> np.ndarray:
    base = name.removesuffix("_quantized")
    if base == name:
        return values[name]
    return dequantise(values[name], values[f"{base}_scale"], values.get(f"{base}_zero_point"))


def dequantise(integers: np.ndarray, scale: np.ndarray, zero: np.ndarray | None) -> np.ndarray:
    shift = np.float32(0) if zero is None else zero.astype(np.float32)
    return (integers.astype(np.float32) - shift) * scale


def rename(weights: dict[str, torch.Tensor], pattern: str, by: str) -> dict[str, torch.Tensor]:
    return {re.sub(pattern, by, name): values for name, values in weights.items()}


def fill(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Puts the weights into a model; every parameter must be found, in its own shape."""
    wanted = dict(model.named_parameters(remove_duplicate=False))
    missing = [name for name, value in wanted.items() if name not in weights or weights[name].shape != value.shape]
    if missing:
        raise ValueError(f"{len(missing)} of {len(wanted)} parameters are not in the graph, first {missing[:5]}.")
    model.load_state_dict({name: weights[name] for name in wanted}, strict=False)
    model.eval()


def run_graph(path: Path, inputs: dict[str, torch.Tensor]) -> list[np.ndarray]:
    """The graph's own outputs: the reference of every check."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    named = {value.name for value in session.get_inputs()}
    return session.run(None, {name: values.numpy() for name, values in inputs.items() if name in named})
