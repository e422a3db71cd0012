"""EAGLE-3 heads: the text is that without them, and drafts are those of a torch reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.models.draw import draw
from quire.models.eagle3 import draw_eagle3
from quire.models.errors import BadCheckpoint, UnsupportedModel
from quire.types.request import SamplingParams
from quire.weights.checkpoint import open_checkpoint
from tests.engine.constrained_drafts import FORMS, NUM_BLOCKS, ConstrainedLoad
from tests.engine.model_drafts import (
    PROMPTS,
    DraftDriver,
    check_proposals,
    draft_always,
    plain_answers,
    recorded_proposals,
)
from tests.engine.spelled import save_spelled
from tests.models.toys import SIZES, VOCAB, MemoryCheckpoint, Toy, as_tensors, toy_of

pytestmark = pytest.mark.device

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
HIDDEN, HEADS, KV_HEADS, FFN, DRAFT_VOCAB = 48, 6, 2, 88, 60
DIM = HIDDEN // HEADS
STRENGTH = 20.0  # the logit of a token that the head is fitted to
KEPT = np.sort(np.random.default_rng(1).permutation(VOCAB)[:DRAFT_VOCAB])  # tokens that the head has
CONFIG = {
    **SIZES,
    **{"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1},
    **{"draft_vocab_size": DRAFT_VOCAB, "rope_theta": 10000.0, "tie_word_embeddings": False},
}


@cache
def target() -> Toy:
    return toy_of("LlamaForCausalLM", {"num_hidden_layers": 6}, seed=3)


def random_arrays(has_table: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)

    def make(*shape: int) -> np.ndarray:
        noise = rng.standard_normal(shape).astype(np.float32)
        return noise * np.float32(0.25) if len(shape) > 1 else 1 + np.float32(0.3) * noise

    layer = {
        "input_layernorm": make(HIDDEN), "hidden_norm": make(HIDDEN), "post_attention_layernorm": make(HIDDEN),
        "self_attn.q_proj": make(HEADS * DIM, 2 * HIDDEN), "self_attn.k_proj": make(KV_HEADS * DIM, 2 * HIDDEN),
        "self_attn.v_proj": make(KV_HEADS * DIM, 2 * HIDDEN), "self_attn.o_proj": make(HIDDEN, HEADS * DIM),
        "mlp.gate_proj": make(FFN, HIDDEN), "mlp.up_proj": make(FFN, HIDDEN), "mlp.down_proj": make(HIDDEN, FFN),
    }  # fmt: skip
    arrays = {f"midlayer.{name}.weight": array for name, array in layer.items()}
    arrays |= {
        "fc.weight": make(HIDDEN, 3 * HIDDEN),
        "norm.weight": make(HIDDEN),
        "lm_head.weight": make(DRAFT_VOCAB, HIDDEN),
    }
    if has_table:
        arrays["embed_tokens.weight"] = make(VOCAB, HIDDEN)
    arrays["d2t"] = (KEPT - np.arange(DRAFT_VOCAB)).astype(np.int64)
    return arrays


@cache
def head_arrays(has_table: bool = False) -> dict[str, np.ndarray]:
    """Return tensors with which the head guesses some tokens of an answer right."""
    (prompt,) = PROMPTS[1:2]
    return fitted_arrays(has_table, [[*prompt, *target().expected_greedy(prompt, 24)]], len(prompt))


def fitted_arrays(has_table: bool, texts: Sequence[list[int]], start: int) -> dict[str, np.ndarray]:
    """Return random tensors, but the output matrix is fitted to these texts, from their token `start` on."""
    arrays = random_arrays(has_table)
    inputs, outputs = zip(*(Reference(arrays).examples(text, start) for text in texts), strict=True)
    found = np.linalg.lstsq(np.concatenate(inputs), np.concatenate(outputs), rcond=None)[0]
    return {**arrays, "lm_head.weight": np.ascontiguousarray(found.T, np.float32)}


def head(has_table: bool = False, **config: Any) -> MemoryCheckpoint:
    return head_of(head_arrays(has_table), **config)


def head_of(arrays: dict[str, np.ndarray], **config: Any) -> MemoryCheckpoint:
    return MemoryCheckpoint("safetensors", {**CONFIG, **config}, as_tensors(arrays))


class Reference:
    """The head in torch, over whole texts."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.torch = pytest.importorskip("torch")
        self.w = {name.removesuffix(".weight"): self.torch.tensor(array) for name, array in arrays.items()}
        self.table = self.w.get("embed_tokens", target().torch_model.model.embed_tokens.weight)

    def norm(self, x: Any, name: str) -> Any:
        return x * self.torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.w[name]

    def rope(self, x: Any) -> Any:
        torch = self.torch
        angles = torch.arange(x.shape[0])[:, None] * 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
        cos, sin = (torch.cat([f(angles)] * 2, -1)[:, None] for f in (torch.cos, torch.sin))
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat([-high, low], -1) * sin

    def layer(self, tokens: Any, rows: Any) -> Any:
        """Hidden rows of all tokens; the second argument: the rows that come with them."""
        torch = self.torch
        both = torch.cat(
            [self.norm(self.table[tokens], "midlayer.input_layernorm"), self.norm(rows, "midlayer.hidden_norm")], -1
        )
        q, k, v = (both @ self.w[f"midlayer.self_attn.{each}_proj"].T for each in "qkv")
        q, k, v = (x.view(len(tokens), -1, DIM) for x in (q, k, v))
        q, k = self.rope(q), self.rope(k)
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
        mask = torch.full(scores.shape[1:], -torch.inf).triu(1)
        out = torch.einsum("hqk,khd->qhd", (scores + mask).softmax(-1), v).reshape(len(tokens), -1)
        x = rows + out @ self.w["midlayer.self_attn.o_proj"].T
        h = self.norm(x, "midlayer.post_attention_layernorm")
        gated = torch.nn.functional.silu(h @ self.w["midlayer.mlp.gate_proj"].T) * (
            h @ self.w["midlayer.mlp.up_proj"].T
        )
        return x + gated @ self.w["midlayer.mlp.down_proj"].T

    def fused(self, text: list[int]) -> Any:
        """Rows that come with all tokens but the first: of three of the target's six layers."""
        states = target().torch_model(self.torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
        return self.torch.cat([states[layer][0] for layer in (2, 3, 3)], -1) @ self.w["fc"].T

    def examples(self, text: list[int], start: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs of the output matrix, and the logits wanted: of each later token that the head has."""
        with self.torch.no_grad():
            rows = self.norm(self.layer(self.torch.tensor(text[1:]), self.fused(text)), "norm").numpy()
        places = [at for at in range(max(start, 2), len(text)) if text[at] in KEPT]
        logits = STRENGTH * (np.array(text)[places, None] == KEPT)
        return rows[[at - 2 for at in places]], logits.astype(np.float32)

    def drafts(self, text: list[int], count: int) -> list[int]:
        torch = self.torch
        with torch.no_grad():
            rows = self.fused(text)
            tokens, found = list(text[1:]), list[int]()
            for _ in range(count):
                out = self.layer(torch.tensor(tokens), rows)
                best = int((self.norm(out[-1:], "norm") @ self.w["lm_head"].T).argmax())
                found.append(int(KEPT[best]))
                tokens, rows = [*tokens, found[-1]], torch.cat([rows, out[-1:]])
        return found


@pytest.mark.parametrize("has_table", [False, True], ids=["the model's table", "a table of its own"])
@pytest.mark.usefixtures("stand_in_and_native")
def test_drafts_are_those_of_the_reference(has_table: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, 3)
    driver = DraftDriver(head(has_table), checkpoint=target().checkpoint)
    proposals = recorded_proposals(driver)
    answers = driver.answers(GREEDY)
    assert answers == plain_answers(GREEDY, checkpoint=target().checkpoint)
    texts = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, answers, strict=True)]
    check_proposals(driver, proposals, texts, Reference(head_arrays(has_table)).drafts)
    assert len(proposals) > 20 and driver.has_accepted_and_rejected
    assert driver.core.counters().drafted_tokens["eagle"] > 0


@pytest.mark.usefixtures("each_depth_and_native")
def test_seeded_text_is_that_without_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, 2)
    sampling = SamplingParams(seed=4, temperature=0.6, max_tokens=24, ignore_eos=True)
    plain = plain_answers(sampling, checkpoint=target().checkpoint)
    fitted = fitted_arrays(False, [[*PROMPTS[1], *plain[1]]], len(PROMPTS[1]))
    driver = DraftDriver(head_of(fitted), checkpoint=target().checkpoint)
    assert driver.answers(sampling) == plain
    assert driver.has_accepted_and_rejected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("each_depth_and_native")
def test_32_constrained_texts_at_once_are_those_without_the_head(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step verifies drafts of many texts, each under its own mask. The head is fitted to four of the answers."""
    draft_always(monkeypatch, 3)
    checkpoint = open_checkpoint(save_spelled(target().torch_model, tmp_path))
    load = ConstrainedLoad(FORMS[form], SamplingParams(temperature=0.0, max_tokens=90))
    plain = load.plain_answers(checkpoint)
    texts = [[*prompt, *answer] for prompt, answer in zip(load.prompts, plain[:4], strict=False)]
    fitted = fitted_arrays(False, texts, len(load.prompts[0]))
    load.check(DraftDriver(head_of(fitted), checkpoint=checkpoint, num_blocks=NUM_BLOCKS), plain)


def test_a_folder_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({**head_arrays(), "t2d": np.isin(np.arange(VOCAB), KEPT)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    draft_always(monkeypatch, 2)
    driver = DraftDriver(open_checkpoint(tmp_path), checkpoint=target().checkpoint)
    assert driver.answers(GREEDY) == plain_answers(GREEDY, checkpoint=target().checkpoint)
    assert driver.core.counters().drafted_tokens["eagle"] > 0


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hidden_size": 60}, "hidden size of 60.*has 48"),
        ({"vocab_size": 99}, "vocabulary of 99.*has 131"),
        ({"norm_before_residual": True}, "norm_before_residual"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 1, 1]}}, r"\[1, 1, 1\]; supported for 6"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, r"\[0, 1, 2\]; supported for 6"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "eagle_config.use_aux_hidden_state = False"),
        ({"eagle_config": {"other": 1}}, "eagle_config.other = 1"),
        ({"eagle_config": True}, "eagle_config = True"),
        ({"eagle_aux_hidden_state_layer_ids": 3}, "eagle_aux_hidden_state_layer_ids = 3"),
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
    ],
)
def test_what_a_head_cannot_be_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        draw_eagle3(head(**changes), draw(target().checkpoint))


@pytest.mark.parametrize("less", [0, 1], ids=["inputs", "outputs"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_head_may_name_the_layers_that_all_heads_read(less: int, is_nested: bool) -> None:
    num_layers = draw(target().checkpoint).config.num_layers
    layers = [each - less for each in (2, num_layers // 2, num_layers - 3)]
    named: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": layers}
    changes = {"eagle_config": {**named, "use_aux_hidden_state": True}} if is_nested else named
    ours, plain = (draw_eagle3(head(**each), draw(target().checkpoint)) for each in (changes, {}))
    assert [node.op for node in ours.target.graph.nodes] == [node.op for node in plain.target.graph.nodes]


def test_a_map_outside_the_vocabulary_is_refused() -> None:
    file = head()
    broken = {**file.tensors, **as_tensors({"d2t": np.full(DRAFT_VOCAB, VOCAB, np.int64)})}
    with pytest.raises(BadCheckpoint, match="d2t maps to tokens outside"):
        draw_eagle3(replace(file, tensors=broken), draw(target().checkpoint))
