"""Embed sentences with ONNX Runtime: build the graph of a BERT from its folder, run it, and print the rates.

A script for the interpreter of ONNX Runtime's own environment: it imports nothing of ours. Standard input has one JSON
object, standard output one JSON list:

    ->  {"folder": "...", "num_heads": 12, "texts": [[...], ...], "warm_up": 8, "batch": 32, "num_threads": 2}
    <-  [[sentences a second, sentences a second of processor time, *the first vector], ...]    for each list of texts

The graph has the fused operators that the runtime's own optimizer makes of a BERT: attention, and norms with a residual
and a bias. Texts of a list have the same number of tokens, so no mask is needed.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

EPSILON, OPSET, IR_VERSION = 1e-12, 18, 10
FUSED = "com.microsoft"  # the domain of the runtime's own operators


def read_tensors(path: Path) -> dict[str, Any]:
    """Return the float32 arrays of a safetensors file."""
    raw = np.memmap(path, np.uint8, "r")
    size = int(raw[:8].view(np.uint64)[0])
    header = json.loads(raw[8 : 8 + size].tobytes())
    data = raw[8 + size :]
    return {
        name: data[slice(*entry["data_offsets"])].view(np.float32).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


class GraphWriter:
    """Collects nodes and weights. Every method returns the name of a value."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, array: Any) -> str:
        """Add a weight."""
        name = f"w{len(self.weights)}"
        self.weights.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, kind: str, *inputs: str, domain: str = FUSED, num_outputs: int = 1, **attributes: Any) -> str:
        """Add a node; return its first output."""
        outputs = [f"v{len(self.nodes)}_{i}" for i in range(num_outputs)]
        make = self._onnx.helper.make_node
        self.nodes.append(make(kind, list(inputs), outputs, domain=domain, **attributes))
        return outputs[0]


def bert_graph(onnx: Any, tensors: dict[str, Any], num_heads: int) -> bytes:
    """Return the encoded graph: token ids to the mean vector of each text."""
    g = GraphWriter(onnx)

    def norm(prefix: str) -> list[str]:
        return [g.weight(tensors[f"{prefix}.LayerNorm.{kind}"]) for kind in ("weight", "bias")]

    def multiply(x: str, name: str) -> str:
        return g.node("MatMul", x, g.weight(tensors[f"{name}.weight"].T), domain="")

    tables = [tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    words, places = g.weight(tables[0]), g.weight(tables[1] + tables[2][0])
    x = g.node(
        "EmbedLayerNormalization", "ids", "", words, places, "", *norm("embeddings"), num_outputs=2, epsilon=EPSILON
    )
    layer = 0
    while f"encoder.layer.{layer}.output.dense.weight" in tensors:
        at = f"encoder.layer.{layer}"
        parts = [f"{at}.attention.self.{word}" for word in ("query", "key", "value")]
        qkv = g.weight(np.concatenate([tensors[f"{part}.weight"].T for part in parts], 1))
        bias = g.weight(np.concatenate([tensors[f"{part}.bias"] for part in parts]))
        seen = multiply(g.node("Attention", x, qkv, bias, num_heads=num_heads), f"{at}.attention.output.dense")
        added = g.weight(tensors[f"{at}.attention.output.dense.bias"])
        x = g.node("SkipLayerNormalization", x, seen, *norm(f"{at}.attention.output"), added, epsilon=EPSILON)
        up = g.node(
            "BiasGelu", multiply(x, f"{at}.intermediate.dense"), g.weight(tensors[f"{at}.intermediate.dense.bias"])
        )
        down, added = multiply(up, f"{at}.output.dense"), g.weight(tensors[f"{at}.output.dense.bias"])
        x = g.node("SkipLayerNormalization", x, down, *norm(f"{at}.output"), added, epsilon=EPSILON)
        layer += 1
    out = g.node("ReduceMean", x, g.weight(np.array([1])), domain="", keepdims=0)
    helper, types = onnx.helper, onnx.TensorProto
    ids = helper.make_tensor_value_info("ids", types.INT32, ["texts", "tokens"])
    mean = helper.make_tensor_value_info(out, types.FLOAT, ["texts", tables[0].shape[1]])
    graph = helper.make_graph(g.nodes, "bert", [ids], [mean], g.weights)
    versions = [helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, 1)]
    encoded: bytes = helper.make_model(graph, opset_imports=versions, ir_version=IR_VERSION).SerializeToString()
    return encoded


def main() -> None:
    """Read the call, embed, and print the result."""
    call = json.load(sys.stdin)
    folder = Path(call["folder"])
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = call["num_threads"]
    graph = bert_graph(import_module("onnx"), read_tensors(folder / "model.safetensors"), call["num_heads"])
    session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    tokenizer = import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))

    def embed(texts: list[str]) -> Any:
        vectors = []
        for first in range(0, len(texts), call["batch"]):
            encoded = tokenizer.encode_batch(texts[first : first + call["batch"]])
            ids = np.array([each.ids for each in encoded], np.int32)
            (means,) = session.run(None, {"ids": ids})
            vectors.append(means / np.linalg.norm(means, axis=1, keepdims=True))
        return np.concatenate(vectors)

    found = []
    for texts in call["texts"]:
        embed(texts[: call["warm_up"]])
        began, busy = time.perf_counter(), time.process_time()
        vectors = embed(texts)
        rates = (len(texts) / (time.perf_counter() - began), len(texts) / (time.process_time() - busy))
        found.append([*rates, *vectors[0].tolist()])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
